"""The page of a calibration: what its studies measured."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fedsim.report.page import write_page
from fedsim.storage.findings import Finding, findings
from fedsim.storage.runfolder import RunFolder
from fedsim.storage.status import Status, standing_of


def write_page_of(folder: RunFolder, summary: Mapping[str, Any]) -> Path:
    """Write report.html into the folder of a calibration."""
    standing = standing_of(summary)
    return write_page(
        folder.path / "report.html",
        "calibration.html",
        {},
        title="Calibration",
        standing="" if standing.status is Status.COMPLETE else str(standing),
        studies=[
            (study, list(found))
            for study, found in groupby(findings(folder.storage), key=lambda finding: finding.study)
        ],
    )


def print_findings(found: Sequence[Finding]) -> None:
    """Print the table that ends a calibration."""
    table = Table("study", "case", "figure", "value")
    for finding in found:
        table.add_row(finding.study, finding.case, finding.figure, f"{finding.value:.3g}")
    Console(width=100).print(table)
