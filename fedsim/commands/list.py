"""`fedsim list`: what there is to choose from."""

import shutil
import sys

import click

from fedsim.commands.settings import settings
from fedsim.core.errors import FedsimError, suggestion


@click.command("list", short_help="what there is to choose from")
@settings
def command(overrides: tuple[str, ...]) -> None:
    """List what GROUPs offer (attack, model, experiment, ...), or a MODULE of yours; without, all groups."""
    from fedsim.config.catalog import GROUPS, catalog_text
    from fedsim.core.imports import reach_working_folder

    reach_working_folder()
    groups = tuple(name for name in overrides if name in GROUPS)
    for name in overrides:
        if name not in GROUPS:
            print(_offered(name, GROUPS))
    if groups or not overrides:
        columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        print(catalog_text(groups, columns))


def _offered(name: str, groups: tuple[str, ...]) -> str:
    """Return what a module of the user's offers, as settings."""
    from importlib.util import find_spec

    try:
        there = find_spec(name) is not None
    except (ImportError, ValueError):
        there = False
    if not there:
        raise FedsimError(
            f"unknown group or module {name!r}: expected some of {', '.join(groups)}, or a module."
            f"{suggestion(name, groups)}"
        )
    from fedsim.config.offers import offers

    found = offers(name)
    if not found:
        return f"{name}: no class of an attack, defense, metric, model, client or data set"
    width = max(len(choice) for choice, _ in found)
    return "\n".join(f"{choice:<{width}}  {summary}" for choice, summary in found)
