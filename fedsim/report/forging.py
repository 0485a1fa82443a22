"""The page of forging games: who won, by how much, how it looks, and whether it could have been seen."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from fedsim.report.forging_figures import causes_figure, errors_figure, pictures_figure, roc_figure
from fedsim.report.forging_table import areas, correlations, lines, short
from fedsim.report.page import write_page
from fedsim.storage.games import MoveRow, batches_file, batches_of, moves
from fedsim.storage.runfolder import RunFolder
from fedsim.storage.status import Status, standing_of

REASONS = 12  # of rejections that are shown
ENOUGH = 8  # moves of one replaced example, to correlate
EACH = 5  # moves of every forgery, to draw ROC curves


def write_page_of(folder: RunFolder, summary: Mapping[str, Any]) -> Path:
    """Write report.html and its figures into the folder of games."""
    rows, standing = moves(folder.storage), standing_of(summary)
    singles = [row for row in rows if row.unwanted == 1 and row.error is not None and row.error > 0]
    figures: dict[str, Figure] = {}
    if any(row.judged for row in rows):
        figures["errors"] = errors_figure(rows)
    pictured = _first_of_each(rows)
    for name, row in pictured.items():
        if (batches := batches_of(folder.storage, row)) is not None:
            figures[f"pictures_{name}"] = pictures_figure(batches)
    if len(singles) >= ENOUGH:
        figures["causes"] = causes_figure(singles)
    if rows and len(rows) >= EACH * len({row.name for row in rows}):
        figures["roc"] = roc_figure(rows)
    summed = lines(rows)
    reasons = dict.fromkeys((line.game, line.forgery, line.reason) for line in summed if line.reason)
    return write_page(
        folder.path / "report.html",
        "forging.html",
        figures,
        title="Forging game",
        standing="" if standing.status is Status.COMPLETE else str(standing),
        lines=summed,
        reasons=list(reasons)[:REASONS],
        games=any(row.game for row in rows),
        won=sum(row.accepted for row in rows),
        total=len(rows),
        short=short,
        pictured=[(name, row) for name, row in pictured.items() if f"pictures_{name}" in figures],
        correlations=correlations(singles) if len(singles) >= ENOUGH else [],
        areas=areas(rows) if "roc" in figures else [],
    )


def _first_of_each(rows: Sequence[MoveRow]) -> dict[str, MoveRow]:
    """Return a move for each forgery: the first that claimed a batch, which is kept."""
    chosen: dict[str, MoveRow] = {}
    for row in rows:
        if row.claimed:
            chosen.setdefault(Path(batches_file(row)).stem, row)
    return chosen
