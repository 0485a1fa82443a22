"""What a calibration found: calibration.csv, a line a figure."""

from dataclasses import dataclass

from fedsim.storage.folder import Storage
from fedsim.storage.tables import append_row, read_rows

FINDINGS = "calibration.csv"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One figure of a calibration."""

    study: str
    case: str
    figure: str
    value: float


def keep_finding(storage: Storage, finding: Finding) -> None:
    """Add a figure."""
    append_row(storage, FINDINGS, finding)


def findings(storage: Storage) -> list[Finding]:
    """Read all figures, in the order of their making."""
    return read_rows(storage, FINDINGS, Finding)
