"""`fedsim report`: write reports again, from what the folders hold; over a folder of runs, an index."""

from pathlib import Path

import click

from fedsim.core.errors import FedsimError, printable


@click.command("report", short_help="write reports again, or an index of runs")
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path))
def command(folders: tuple[Path, ...]) -> None:
    """Write the report of each folder again: of a run, replay, sweep, comparison, game or calibration.

    Of a folder that holds run folders, such as runs/: an index.html over all of them.
    """
    for path in folders:
        if not path.is_dir():
            raise FedsimError(f"{path}: expected a run's folder, or one that holds some, got none")
        print(printable(str(_written(path)), keep=""))


def _written(path: Path) -> Path:
    if not (path / "config.yaml").is_file():
        from fedsim.report.index import write_index

        return write_index(path)
    from fedsim.report.write import write_report
    from fedsim.storage.runfolder import RunFolder

    folder = RunFolder(path)
    if folder.kind == "sweep":
        for run in sorted(path.glob("*/config.yaml")):
            write_report(RunFolder(run.parent))
    return write_report(folder)
