"""`fedsim forge`: the forging game."""

from collections.abc import Sequence

import click

from fedsim.commands.settings import settings
from fedsim.core.errors import FedsimError


@click.command("forge", short_help="the forging game")
@click.option("-m", "--multirun", is_flag=True, help="A game for every combination of KEY=A,B.")
@settings
def command(overrides: tuple[str, ...], multirun: bool) -> None:
    """Claim other data for recorded steps, and be judged: forgery=[greedy,lattice] forge.challenges=N."""
    forge_by(overrides, multirun)


def forge_by(overrides: Sequence[str], multirun: bool | None = None) -> None:
    """Play games; multirun None: as the experiment wants."""
    import torch

    from fedsim.config import build
    from fedsim.config.compose import as_text, combinations, composed, key, parsed, with_defaults
    from fedsim.integrity.forge import Move, play
    from fedsim.report.forging import print_moves, refutation, write_forging
    from fedsim.storage.folder import Storage

    named = {key(override) for override in parsed(overrides)}
    forgeries = [] if named & {"forgery", "experiment"} else ["forgery=[greedy,nearest]"]
    given = with_defaults(overrides, ["audit=proof_of_learning", "name=forging", *forgeries])
    varied = [o.input_line for o in parsed(given) if o.is_sweep_override()]
    if varied and not multirun:
        raise FedsimError(f"{varied[0]}: several values make a sweep. Remedy: fedsim forge -m ...")
    first = composed(combinations(given, {})[0][1])
    swept = first.swept if multirun in (None, True) else {}
    configs = [(label, composed(own).config) for label, own in combinations(given, swept)]
    folder = first.folder
    if (folder / "forgeries.csv").exists():
        raise FedsimError(f"{folder} holds a game already. Remedy: another hydra.run.dir.")
    games = [(config.threads, build.forging_game(config, folder, name)) for name, config in configs]
    texts = [f"# {name or 'the game'}\n{as_text(config)}" for name, config in configs]
    Storage(folder).write_text("forge.yaml", "---\n".join(texts))
    moves = list[Move]()
    try:
        for threads, game in games:
            torch.set_num_threads(threads)
            moves.extend(play(game))
    finally:  # an interrupted game shows what it has
        if moves:
            report = write_forging(moves, folder)
    print_moves(moves)
    for name, config in configs:
        if config.forge.examples is not None:
            print(refutation([move for move in moves if move.game == name], list(config.forge.examples)))
    print(f"report: {report.resolve()}")
    print(folder.resolve())
