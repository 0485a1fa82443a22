"""The page of forging games: who won, by how much, how it looks, and whether it could have been seen."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from matplotlib.figure import Figure

from fedsim.report.answers import Answer
from fedsim.report.answers_integrity import game_answer
from fedsim.report.forging_figures import (
    causes_figures,
    distances_figure,
    errors_figure,
    pictures_figure,
    reach_figure,
    roc_figures,
)
from fedsim.report.forging_table import areas, correlations, lines, short
from fedsim.report.origin import origin_of, setting_of
from fedsim.report.page import write_page
from fedsim.storage.games import MoveRow, batches_file, batches_of, moves
from fedsim.storage.runfolder import RunFolder
from fedsim.storage.status import Status, standing_of

REASONS = 12  # of rejections that are shown
ENOUGH = 8  # moves of one replaced example, to correlate
EACH = 5  # moves of every forgery, to draw ROC curves


def answer_of(folder: RunFolder, summary: Mapping[str, Any]) -> Answer:
    """Say how many forgeries were accepted, and whose."""
    return game_answer(moves(folder.storage), standing_of(summary))


def drawings_of(folder: RunFolder, summary: Mapping[str, Any]) -> dict[str, Figure]:
    """Draw what the page shows."""
    rows = moves(folder.storage)
    figures: dict[str, Figure] = {}
    if any(row.judged for row in rows):
        figures["errors"] = errors_figure(rows)
    kept = {name: batches_of(folder.storage, row) for name, row in _first_of_each(rows).items()}
    shown = {name: batches for name, batches in kept.items() if batches and batches.used.images.ndim == 4}
    if shown:
        figures["distances"] = distances_figure(rows)
        figures["reach"] = reach_figure(shown)
    for name, batches in shown.items():
        figures[f"pictures_{name}"] = pictures_figure(batches)
    if len(singles := _singles(rows)) >= ENOUGH:
        figures |= causes_figures(singles)
    if rows and len(rows) >= EACH * len({row.name for row in rows}):
        figures |= roc_figures(rows)
    return figures


def _singles(rows: Sequence[MoveRow]) -> list[MoveRow]:
    """Return the moves that replaced one example, which can be correlated with what it was."""
    return [row for row in rows if row.unwanted == 1 and row.moved is not None and (row.error or 0) > 0]


def write_page_of(folder: RunFolder, summary: Mapping[str, Any]) -> Path:
    """Write report.html and its figures into the folder of games."""
    rows, standing = moves(folder.storage), standing_of(summary)
    config: dict[str, Any] = yaml.safe_load(folder.config_text()) or {}
    singles, pictured, figures = _singles(rows), _first_of_each(rows), drawings_of(folder, summary)
    summed = lines(rows)
    reasons = dict.fromkeys((line.game, line.forgery, line.reason) for line in summed if line.reason)
    return write_page(
        folder.path / "report.html",
        "forging.html",
        figures,
        title=_title(config),
        answer=game_answer(rows, standing),
        standing="" if standing.status is Status.COMPLETE else str(standing),
        lines=summed,
        reasons=list(reasons)[:REASONS],
        games=any(row.game for row in rows),
        short=short,
        pictured=[(name, row) for name, row in pictured.items() if f"pictures_{name}" in figures],
        correlations=correlations(singles) if len(singles) >= ENOUGH else [],
        areas=areas(rows) if any(name.startswith("roc_") for name in figures) else [],
        origin=origin_of(folder, summary, config),
    )


def _title(config: Mapping[str, Any]) -> str:
    """Name games by model, data and what the verifier goes by."""
    configs = list(config.get("games", {}).values()) or [config]
    defenses = ", ".join(dict.fromkeys(str((own.get("choices") or {}).get("audit", "")) for own in configs))
    return ": ".join(filter(None, ("Forging game", setting_of(configs)))) + (
        f", {defenses}" if defenses else ""
    )


def _first_of_each(rows: Sequence[MoveRow]) -> dict[str, MoveRow]:
    """Return a move for each forgery: the first that claimed a batch, which is kept."""
    chosen: dict[str, MoveRow] = {}
    for row in rows:
        if row.claimed:
            chosen.setdefault(Path(batches_file(row)).stem, row)
    return chosen
