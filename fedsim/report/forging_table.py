"""Forging games in figures: a line a forgery, correlations, areas under ROC curves; and on the terminal."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean, median

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedsim.core.errors import printable
from fedsim.storage.games import HONEST, STATISTICS, MoveRow

CAUSES = {"loss": "loss of the replaced example", "moved": "distance of its replacement (rms)"}


@dataclass(frozen=True, kw_only=True)
class Line:
    """All moves of a forgery in a game with as many unwanted examples, in a line."""

    game: str
    forgery: str
    unwanted: str
    moves: int
    once: int  # accepted at the honest error itself
    twice: int  # at twice that
    accepted: int  # at the verifier's delta
    twins: int  # that lead to the same weights in float64
    near: float | None  # the nearest that a claimed image came to an unwanted one, in grey levels
    domain: str
    planned: bool
    error: float | None  # median
    smallest: float | None
    largest: float | None
    benign: float | None  # median
    gone: float | None  # share of the unwanted examples; None: there were none
    moved: float | None  # median change of their images, in grey levels
    seconds: float  # median
    reason: str  # of the first that lost

    @property
    def ratio(self) -> float | None:
        """The median error in units of the honest one."""
        return self.error / self.benign if self.error is not None and self.benign else None


def lines(moves: Sequence[MoveRow]) -> list[Line]:
    """Sum moves up."""
    groups: dict[tuple[str, str, int, int], list[MoveRow]] = {}
    for move in moves:
        groups.setdefault((move.game, move.forgery, move.unwanted, move.size), []).append(move)
    return [_line(group) for group in groups.values()]


def _line(moves: Sequence[MoveRow]) -> Line:
    errors = [move.error for move in moves if move.error is not None and math.isfinite(move.error)]
    benign = [move.benign for move in moves if move.benign is not None]
    first = moves[0]
    return Line(
        game=first.game,
        forgery=first.forgery,
        unwanted=f"{first.unwanted} of {first.size}",
        moves=len(moves),
        once=sum(move.once for move in moves),
        twice=sum(move.twice for move in moves),
        accepted=sum(move.accepted for move in moves),
        twins=sum(move.twin for move in moves),
        near=min((move.near_l2 for move in moves if move.near_l2 is not None), default=None),
        domain=", ".join(dict.fromkeys(move.domain for move in moves if move.judged)) or "none",
        planned=any(move.planned for move in moves),
        error=median(errors) if errors else None,
        smallest=min(errors, default=None),
        largest=max(errors, default=None),
        benign=median(benign) if benign else None,
        gone=_gone(moves),
        moved=255 * median(moved) if (moved := [m.moved for m in moves if m.moved is not None]) else None,
        seconds=median(move.seconds for move in moves),
        reason=next((move.reason for move in moves if not move.accepted), ""),
    )


def _gone(moves: Sequence[MoveRow]) -> float | None:
    total = sum(move.unwanted for move in moves)
    return sum(move.gone for move in moves) / total if total else None


def print_moves(moves: Sequence[MoveRow]) -> None:
    """Print the small table that ends a game."""
    table = Table()
    games = any(move.game for move in moves)
    for name in (["game"] if games else []) + [
        "forgery",
        "unwanted",
        "gone",
        "1x, 2x",
        "accepted",
        "twins",
        "domain",
    ]:
        table.add_column(name, no_wrap=name == "forgery")
    for name in ("error", "honest", "moved", "nearest"):
        table.add_column(name, justify="right")
    for line in lines(moves):
        name = f"{line.forgery} (planned)" if line.planned else line.forgery
        cells = [line.game] if games else []
        gone = "–" if line.gone is None else f"{100 * line.gone:.0f} %"
        cells += [
            name,
            line.unwanted,
            gone,
            f"{line.once}, {line.twice}",
            f"{line.accepted} of {line.moves}",
            str(line.twins),
            line.domain,
        ]
        shown = (Text(printable(cell, keep="")) for cell in cells)
        table.add_row(*shown, *(short(value) for value in (line.error, line.benign, line.moved, line.near)))
    Console(width=110).print(table)


def refutation(moves: Sequence[MoveRow], examples: Sequence[int]) -> str:
    """Say whether the trace passes as one that never used these examples."""
    said = list[str]()
    for forgery, own in by_forgery(moves):
        good = sum(move.accepted and move.gone == move.unwanted for move in own)
        verdict = "the whole trace passes without them" if good == len(own) else "the claim fails"
        said.append(f"{forgery}: examples {list(examples)} denied in {good} of {len(own)} steps: {verdict}")
    return printable("\n".join(said))


def short(value: float | None) -> str:
    """Return a number in few digits."""
    return "–" if value is None else f"{value:.2g}"


def correlations(moves: Sequence[MoveRow]) -> list[tuple[str, str, float, float]]:
    """Return how errors go with the loss and with the distance: rank correlations, over all and in a step."""
    return [
        (forgery, words, _rank_correlation(own, name), _within_steps(own, name))
        for forgery, own in by_forgery(moves)
        if len(own) >= 8
        for name, words in CAUSES.items()
    ]


def _rank_correlation(moves: Sequence[MoveRow], name: str) -> float:
    from scipy.stats import spearmanr  # whoever prints the moves does without

    return float(spearmanr([getattr(move, name) for move in moves], [move.error for move in moves])[0])


def _within_steps(moves: Sequence[MoveRow], name: str) -> float:
    """Return the mean over steps: without what changes for all examples in the course of training."""
    steps = [[move for move in moves if move.step == step] for step in sorted({move.step for move in moves})]
    found = [_rank_correlation(own, name) for own in steps if len(own) >= 5]
    return fmean(found) if found else math.nan


def areas(moves: Sequence[MoveRow]) -> list[tuple[str, str, float]]:
    """Return how well each statistic tells forged batches from honest ones: the area under its ROC curve."""
    return [
        (forgery, in_words(name), _area(*suspected(own, name)))
        for forgery, own in by_forgery([move for move in moves if move.claimed])
        for name in STATISTICS
    ]


def suspected(moves: Sequence[MoveRow], statistic: str) -> tuple[list[float], list[float]]:
    """Return a statistic of the batches that were claimed, and of those at hand."""
    forged = [float(getattr(move, statistic)) for move in moves]
    return forged, [float(getattr(move, HONEST + statistic)) for move in moves]


def in_words(statistic: str) -> str:
    """Return a statistic's name as it is read."""
    return statistic.replace("_", " ")


def _area(forged: Sequence[float], honest: Sequence[float]) -> float:
    import numpy as np

    gaps = np.subtract.outer(np.asarray(forged), np.asarray(honest))
    return float((gaps > 0).mean() + 0.5 * (gaps == 0).mean())


def by_forgery(moves: Sequence[MoveRow]) -> list[tuple[str, list[MoveRow]]]:
    """Return the moves of each forgery in each game: games differ too much to be thrown together."""
    ordered = sorted(moves, key=lambda move: move.name)
    return [(name, list(own)) for name, own in groupby(ordered, key=lambda move: move.name)]
