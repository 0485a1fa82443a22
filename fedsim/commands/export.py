"""`fedsim export`: scores of many runs as one table, and their figures as files."""

import sys
from pathlib import Path

import click

from fedsim.core.errors import FedsimError, printable


@click.command("export", short_help="one table of many runs, and their figures")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--to", type=click.Path(path_type=Path), help="A file that ends in .csv, .parquet or .tex.")
@click.option("--metrics", default="", help="These alone: lnacc,irec.")
@click.option("--figures", type=click.Path(path_type=Path), help="A folder for the figures of RUNS.")
@click.option("--format", "form", type=click.Choice(["svg", "pdf"]), default="svg", help="Of the figures.")
def command(runs: tuple[Path, ...], to: Path | None, metrics: str, figures: Path | None, form: str) -> None:
    """Write one tidy table over RUNS: runs, sweeps, comparisons, or folders that hold them.

    A row is a score with the settings of its run and the batch size that was really seen. As .tex it is a
    booktabs table of means with baselines, 95 % intervals from three seeds on, and ranges below.
    """
    if to is None and figures is None:
        raise FedsimError("export: expected --to FILE, --figures FOLDER, or both")
    if to is not None:
        _table(runs, to, [name for name in metrics.split(",") if name])
    if figures is not None:
        _figures(runs, figures, form)


def _table(runs: tuple[Path, ...], to: Path, metrics: list[str]) -> None:
    from fedsim.report.export import check_place, write_table
    from fedsim.report.tidy import exported

    check_place(to)
    found = exported(runs)
    for words in found.skipped:
        print(printable(f"fedsim: left out: {words}"), file=sys.stderr)
    number = write_table(to, found, metrics)
    print(f"{number:,} scores of {len(found.runs):,} runs")
    print(printable(str(to.resolve()), keep=""))


def _figures(runs: tuple[Path, ...], figures: Path, form: str) -> None:
    from fedsim.report.export_figures import write_figures

    for path in write_figures(runs, figures, form):
        print(printable(str(path.resolve()), keep=""))
