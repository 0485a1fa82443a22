"""`fedsim calibrate`: what tells honest recomputation from a lie, on this machine."""

from collections.abc import Sequence

import click

from fedsim.commands.settings import settings


@click.command("calibrate", short_help="measure honest recomputation on this machine")
@settings
def command(overrides: tuple[str, ...]) -> None:
    """Measure what tells honest recomputation from a lie, on this machine: proof.study=[reproduction]."""
    calibrate_by(overrides)


def calibrate_by(overrides: Sequence[str]) -> None:
    """Calibrate, and say where the table is."""
    from dataclasses import asdict

    from rich.console import Console
    from rich.table import Table

    from fedsim.commands.central import central
    from fedsim.storage.files import csv_text
    from fedsim.storage.folder import Storage

    audit, training, _ = central(overrides)
    findings = [asdict(finding) for finding in audit.calibrate(training)]
    table = Table(*findings[0])
    for finding in findings:
        table.add_row(*(f"{v:.3g}" if isinstance(v, float) else str(v) for v in finding.values()))
    Console(width=100).print(table)
    lines = [list(findings[0]), *([str(value) for value in finding.values()] for finding in findings)]
    Storage(training.folder).write_text("calibration.csv", csv_text(lines))
    print((training.folder / "calibration.csv").resolve())
