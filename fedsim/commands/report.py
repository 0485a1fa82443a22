"""`fedsim report`: write reports again, from what the folders hold."""

from pathlib import Path

import click

from fedsim.core.errors import FedsimError, printable


@click.command("report", short_help="write reports again")
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path))
def command(folders: tuple[Path, ...]) -> None:
    """Write the report of each folder again: of a run, replay, sweep, comparison, game or calibration."""
    from fedsim.report.write import write_report
    from fedsim.storage.runfolder import RunFolder

    for path in folders:
        folder = RunFolder(path)
        if not (path / "config.yaml").is_file():
            raise FedsimError(f"{path} holds no run: looked for config.yaml in it")
        if folder.kind == "sweep":
            for run in sorted(path.glob("*/config.yaml")):
                write_report(RunFolder(run.parent))
        print(printable(str(write_report(folder)), keep=""))
