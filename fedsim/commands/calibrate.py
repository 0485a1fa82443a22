"""`fedsim calibrate`: what tells honest recomputation from a lie, on this machine."""

from collections.abc import Sequence

import click

from fedsim.commands.settings import settings, tell_folder


@click.command("calibrate", short_help="measure honest recomputation on this machine")
@settings
def command(overrides: tuple[str, ...]) -> None:
    """Measure what tells honest recomputation from a lie, on this machine: proof.study=[reproduction]."""
    calibrate_by(overrides)


def calibrate_by(overrides: Sequence[str]) -> None:
    """Calibrate, and say where the table is."""
    from fedsim.commands.central import central
    from fedsim.config.compose import as_text
    from fedsim.integrity.calibrate import calibrate
    from fedsim.report.calibration import print_findings
    from fedsim.storage.runfolder import RunFolder

    audit, training, found = central(overrides, "calibration")
    name, text = str(found.config.name), as_text(found.config)
    folder = RunFolder(found.folder)
    print_findings(calibrate(training, audit.how.distance, folder, name=name, config_text=text))
    tell_folder(found.folder)
