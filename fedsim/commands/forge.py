"""`fedsim forge`: the forging game."""

from collections.abc import Sequence

import click

from fedsim.commands.settings import settings, tell_folder
from fedsim.core.errors import FedsimError


@click.command("forge", short_help="the forging game")
@click.option("-m", "--multirun", is_flag=True, help="A game for every combination of KEY=A,B.")
@settings
def command(overrides: tuple[str, ...], multirun: bool) -> None:
    """Claim other data for recorded steps, and be judged: forgery=[greedy,lattice] forge.challenges=N."""
    forge_by(overrides, multirun)


def forge_by(overrides: Sequence[str], multirun: bool | None = None) -> None:
    """Play games; multirun None: as the experiment wants."""
    from omegaconf import OmegaConf

    from fedsim.config.build_central import forging_game
    from fedsim.config.compose import as_text, combinations, composed, key, parsed, unvaried, with_defaults
    from fedsim.integrity.games import play_games
    from fedsim.report.forging_table import print_moves, refutation
    from fedsim.storage.runfolder import RunFolder

    named = {key(override) for override in parsed(overrides)}
    forgeries = [] if named & {"forgery", "experiment"} else ["forgery=[greedy,nearest]"]
    given = with_defaults(overrides, ["audit=proof_of_learning", "name=forging", *forgeries])
    varied = [override.input_line for override in parsed(given) if override.is_sweep_override()]
    if varied and multirun is False:
        raise FedsimError(f"{varied[0]}: several values make a sweep. Remedy: fedsim forge -m ...")
    first = composed(unvaried(given))
    swept = {} if multirun is False else first.swept
    configs = {label: composed(own).config for label, own in combinations(given, swept)}
    games = [forging_game(config, label) for label, config in configs.items()]
    text = as_text(first.config) if len(games) == 1 else as_text(OmegaConf.create({"games": configs}))
    folder = RunFolder(first.folder)
    moves = play_games(games, folder, name=str(first.config.name), config_text=text)
    print_moves(moves)
    for game in games:
        if game.rules.examples is not None:
            print(refutation([move for move in moves if move.game == game.name], game.rules.examples))
    tell_folder(folder.path)
