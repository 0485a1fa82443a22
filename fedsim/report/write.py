"""Which page a run folder gets: one file of this room a kind of run."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from fedsim.core.errors import FedsimError, printable
from fedsim.report.answers import Answer
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
    page: Path = _page_of(folder).write_page_of(folder, summary)
    return page


def answer_of(folder: RunFolder, summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a run folder's report begins with, for summary.json and terminals: a line, and points."""
    answer: Answer = _page_of(folder).answer_of(folder, summary)
    said: dict[str, Any] = {"answer": printable(answer.text, keep="")}
    points = [printable(point, keep="") for point in answer.points]
    return said | ({"points": points} if points else {})


def drawings_of(folder: RunFolder) -> dict[str, Figure]:
    """Return the figures of a run folder's report."""
    figures: dict[str, Figure] = _page_of(folder).drawings_of(folder, folder.summary())
    return figures


def _page_of(folder: RunFolder) -> Any:
    if (kind := folder.kind) not in PAGES:
        raise FedsimError(f"{folder.path}: a {kind} has no report. Remedy: one of {', '.join(PAGES)}.")
    return import_module(f"fedsim.report.{PAGES[kind]}")
