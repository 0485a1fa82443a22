"""`fedsim forge`: the forging game."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedsim.commands.settings import play_many, settings, tell_folder
from fedsim.core.errors import FedsimError

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from fedsim.integrity.forge import Game
    from fedsim.storage.games import MoveRow
    from fedsim.storage.runfolder import RunFolder


@click.command("forge", short_help="the forging game")
@click.option("-m", "--multirun", is_flag=True, help="A game for every combination of KEY=A,B.")
@click.option(
    "--check", type=click.Path(path_type=Path), help="Judge the forged traces of this folder again."
)
@settings
def command(overrides: tuple[str, ...], multirun: bool, check: Path | None) -> None:
    """Claim other data for recorded steps, and be judged: forgery=[greedy,lattice] forge.challenges=N.

    Where forge.examples are denied at every step the whole trace is written; --check judges its files.
    """
    if check is None:
        forge_by(overrides, multirun)
    else:
        check_traces(check)


def check_traces(path: Path) -> None:
    """Judge a folder's forged traces by its own batches and config; status 1 if one is rejected."""
    from fedsim.config.build_central import forging_game
    from fedsim.config.compose import parse_text
    from fedsim.integrity.forged_trace import judge_traces
    from fedsim.storage.runfolder import RunFolder

    folder = RunFolder(path)
    game = forging_game(parse_text(folder.config_text()))
    problems = list[str]()
    for verdict in judge_traces(folder.storage, game.training, game.domain, game.form, game.rules.every):
        print(verdict, flush=True)  # as they come: a trace takes minutes
        problems.append(verdict.problem)
    if any(problems):
        sys.exit(1)


def forge_by(overrides: Sequence[str], multirun: bool | None = None) -> None:
    """Play games; multirun None: as the experiment wants."""
    from fedsim.config.build_central import forging_game
    from fedsim.config.compose import as_text, combinations, composed, key, parsed, unvaried, with_defaults
    from fedsim.integrity.games import play_game
    from fedsim.storage.runfolder import RunFolder

    named = {key(override) for override in parsed(overrides)}
    forgeries = [] if named & {"forgery", "experiment"} else ["forgery=[greedy,nearest]"]
    given = with_defaults(overrides, ["audit=proof_of_learning", "name=forging", *forgeries])
    varied = [override.input_line for override in parsed(given) if override.is_sweep_override()]
    if varied and multirun is False:
        raise FedsimError(f"{varied[0]}: several values make a sweep. Remedy: fedsim forge -m ...")
    first = composed(unvaried(given))
    swept = {} if multirun is False else first.swept
    chosen = {label: (own, composed(own).config) for label, own in combinations(given, swept)}
    games = [forging_game(config, label) for label, (_, config) in chosen.items()]  # a wrong one is refused
    folder = RunFolder(first.folder)
    if len(games) > 1:
        _play_several(chosen, games, folder, first.config)
        return
    moves = play_game(games[0], folder, name=str(first.config.name), config_text=as_text(first.config))
    _tell(moves, games)
    tell_folder(folder.path)


def _play_several(
    chosen: "Mapping[str, tuple[list[str], DictConfig]]",
    games: "Sequence[Game]",
    folder: "RunFolder",
    common: "DictConfig",
) -> None:
    """Play what is missing of several games, and sum up all that there are."""
    from omegaconf import OmegaConf

    from fedsim.config.compose import as_text
    from fedsim.integrity.games import GameJob, play_games
    from fedsim.lab.grid import RunsFailed
    from fedsim.storage.files import as_file_name
    from fedsim.storage.games import moves

    configs = {
        label: OmegaConf.masked_copy(config, [str(name) for name in config if name != "jobs"])
        for label, (_, config) in chosen.items()
    }
    jobs = [
        GameJob(
            path=folder.path / "games" / as_file_name(f"{number}_{label}"), label=label, overrides=tuple(own)
        )
        for number, (label, (own, _)) in enumerate(chosen.items())
    ]
    text = as_text(OmegaConf.create({"games": configs}))

    def play() -> None:
        try:
            play_games(jobs, folder, processes=common.jobs, name=str(common.name), config_text=text)
        except (RunsFailed, KeyboardInterrupt):  # the others have their moves
            _tell(moves(folder.storage), games)
            raise
        _tell(moves(folder.storage), games)

    play_many(folder.path, play)


def _tell(moves: "Sequence[MoveRow]", games: "Sequence[Game]") -> None:
    """Print the table of moves, and what became of examples that were denied."""
    from fedsim.report.forging_table import print_moves, refutation

    print_moves(moves)
    for game in games:
        if game.rules.examples is not None:
            print(refutation([move for move in moves if move.game == game.name], game.rules.examples))
