"""Forging games into a run folder, move by move."""

import math
from collections.abc import Sequence
from statistics import median
from typing import Any

import torch

from fedsim.integrity.forge import Game, play
from fedsim.lab.record import recorded
from fedsim.storage.games import MoveBatches, MoveRow, keep_move, moves
from fedsim.storage.runfolder import RunFolder


def play_games(games: Sequence[Game], folder: RunFolder, *, name: str, config_text: str) -> list[MoveRow]:
    """Play games one after the other into one run folder; a move is kept as soon as it is judged."""
    folder.begin("game", config_text)
    with recorded(folder, name, lambda: summarise(moves(folder.storage))):
        for game in games:
            torch.set_num_threads(game.training.threads)
            for move in play(game):
                shown = None
                if move.claimed is not None:
                    shown = MoveBatches(used=move.used, claimed=move.claimed)
                keep_move(folder.storage, move.row, shown)
    return moves(folder.storage)


def summarise(rows: Sequence[MoveRow]) -> dict[str, Any]:
    """Return what summary.json says: the share of accepted claims, and typical errors beside honest ones."""
    errors = [row.error for row in rows if row.error is not None and math.isfinite(row.error)]
    benign = [row.benign for row in rows if row.benign is not None and math.isfinite(row.benign)]
    metrics = {"accepted": sum(row.accepted for row in rows) / len(rows)} if rows else {}
    metrics |= {"error": median(errors)} if errors else {}
    metrics |= {"honest_error": median(benign)} if benign else {}
    return {"metrics": metrics, "moves": len(rows)}
