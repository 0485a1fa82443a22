"""Forging games into a run folder, move by move: one, or many that share the grid's pool."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from omegaconf import DictConfig

from fedsim.config.build_central import forging_game
from fedsim.config.compose import as_text, compose
from fedsim.core.training import Batch
from fedsim.integrity.forge import Game, play
from fedsim.integrity.forged_trace import write_trace
from fedsim.lab.grid import Job, RunsFailed, attempt, begin_or_go_on, pool_of, run_missing
from fedsim.lab.record import recorded
from fedsim.storage.games import MoveBatches, MoveRow, adopt_moves, keep_move, moves
from fedsim.storage.runfolder import RunFolder


@dataclass(frozen=True, kw_only=True)
class GameJob(Job):
    """One of several games, to be made of overrides."""

    label: str  # what distinguishes it from the others
    overrides: tuple[str, ...]

    def play(self) -> str | None:
        """Play the game into a folder of its own."""
        return attempt(self.path, "game", lambda: compose(self.overrides), self._play)

    def _play(self, config: DictConfig) -> None:
        game, folder = forging_game(config, self.label), RunFolder(self.path)
        play_game(game, folder, name=self.label, config_text=as_text(config))


def play_game(game: Game, folder: RunFolder, *, name: str, config_text: str) -> list[MoveRow]:
    """Play a game into a run folder; a move is kept as soon as it is judged."""
    folder.begin("game", config_text)
    with recorded(folder, name, lambda: summarise(moves(folder.storage))):
        torch.set_num_threads(game.training.threads)
        claims: dict[str, dict[int, Batch]] = {name: {} for name in game.forgeries}
        failed = set[str]()
        for move in play(game):
            if move.claimed is not None and move.row.accepted:
                claims[move.row.forgery][move.row.step] = move.claimed
            else:
                failed.add(move.row.forgery)
            shown = None
            if move.claimed is not None:
                shown = MoveBatches(used=move.used, claimed=move.claimed)
            keep_move(folder.storage, move.row, shown)
        if game.rules.examples is not None and game.rules.precision == "float32" and game.domain == "uint8":
            for name in claims.keys() - failed:  # a trace is whole or nothing
                write_trace(
                    folder.storage, name, game.training, claims[name], game.rules.examples, game.rules.every
                )
    return moves(folder.storage)


def play_games(
    jobs: Sequence[GameJob], folder: RunFolder, *, processes: int, name: str, config_text: str
) -> list[MoveRow]:
    """Play what is missing of many games; their moves come together in one folder, in the games' order.

    Failed games are a RunsFailed when the others have ended.
    """
    begin_or_go_on(folder, "game", config_text)
    with recorded(folder, name, lambda: summarise(moves(folder.storage))):
        try:
            with pool_of(processes) as pool:
                problems = run_missing(jobs, "games", pool)
        finally:  # of an interrupted game, what there is
            adopt_moves(folder.storage, [job.path for job in jobs])
        if problems:
            raise RunsFailed(problems)
    return moves(folder.storage)


def summarise(rows: Sequence[MoveRow]) -> dict[str, Any]:
    """Return what summary.json says: the share of accepted claims, and typical errors beside honest ones."""
    errors = [row.error for row in rows if row.error is not None and math.isfinite(row.error)]
    benign = [row.benign for row in rows if row.benign is not None and math.isfinite(row.benign)]
    metrics = {"accepted": sum(row.accepted for row in rows) / len(rows)} if rows else {}
    metrics |= {"error": median(errors)} if errors else {}
    metrics |= {"honest_error": median(benign)} if benign else {}
    return {"metrics": metrics, "moves": len(rows)}
