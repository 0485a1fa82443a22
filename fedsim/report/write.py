"""Which page a run folder gets: one file of this room a kind of run."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from fedsim.core.errors import FedsimError
from fedsim.storage.runfolder import RunFolder

PAGES = {
    "run": "run",
    "replay": "run",
    "wiretap": "run",
    "sweep": "sweep",
    "comparison": "comparison",
    "game": "forging",
    "proof": "proof",
    "calibration": "calibration",
}


def write_report(folder: RunFolder, summary: Mapping[str, Any] | None = None) -> Path:
    """Write a run folder's report from what is in it; summary: that is to be its last word."""
    summary = folder.summary() if summary is None else summary
    if (kind := folder.kind) not in PAGES:
        raise FedsimError(f"{folder.path}: a {kind} has no report. Remedy: one of {', '.join(PAGES)}.")
    page: Path = import_module(f"fedsim.report.{PAGES[kind]}").write_page_of(folder, summary)
    return page
