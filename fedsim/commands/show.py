"""`fedsim show`: a run's table in the terminal, and its report in the browser."""

from pathlib import Path

import click

from fedsim.core.errors import FedsimError

LATEST = "latest"


@click.command("show", short_help="print a run's table, or open its report")
@click.argument("run", metavar="RUN|latest")
@click.option("--open", "opened", is_flag=True, help="Open the report in the browser, too.")
def command(run: str, opened: bool) -> None:
    """Print the table of RUN, how it stands and where it lies; latest: the newest run folder under runs/."""
    from fedsim.report.overview import overview
    from fedsim.report.showing import show

    path = latest() if run == LATEST and not Path(run).is_dir() else Path(run)
    if not path.is_dir():
        raise FedsimError(f"{path}: no such folder. Remedy: name a run's folder, or latest.")
    found = overview(path)
    if not found.is_run:
        raise FedsimError(f"{path}: {found.problem}. Remedy: name a run's folder, or latest.")
    show(found)
    if opened:
        _open(path / "report.html")


def latest() -> Path:
    """Return the newest run folder under runs/."""
    from fedsim.report.overview import newest_first

    if not (found := newest_first(Path("runs"))):
        raise FedsimError("latest: no run folder under runs/ here. Remedy: run one, or name its folder.")
    return found[0]


def _open(page: Path) -> None:
    import webbrowser

    if not page.is_file():
        raise FedsimError(f"{page} is not there. Remedy: fedsim report {page.parent}")
    if not webbrowser.open(page.resolve().as_uri()):
        raise FedsimError(f"no browser to open {page} with. Remedy: open it yourself.")
