"""`fedsim compare`: every attack against every defense."""

from collections.abc import Sequence

import click

from fedsim.commands.settings import play_many, settings


@click.command("compare", short_help="every attack against every defense")
@settings
def command(overrides: tuple[str, ...]) -> None:
    """Play every attack against every defense, with the same seeds, batches and first model.

    attack=[ilrg,{ig: {optimiser.iterations: 300}}] defense=[none,[clip,noise]] seeds=N jobs=N into=DIR, and
    settings of every run. seed=S is the first of the N seeds, S to S+N-1; 0 unless told. Run again, only what
    is missing runs.
    """
    compare_by(overrides)


def compare_by(overrides: Sequence[str]) -> None:
    """Compare, and say where the report is."""
    from fedsim.lab.compare import compare, comparison_of

    comparison = comparison_of(overrides)
    play_many(comparison.folder, lambda: compare(comparison))
