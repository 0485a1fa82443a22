"""Scores as a table, and what they come to."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TypeGuard

from fedsim.metrics.chance import chance


@dataclass(frozen=True, kw_only=True)
class ScoreRow:
    """One line of scores.csv; `error` instead of a value where a client or an attack failed."""

    round: int
    client: int
    attack: str
    metric: str
    value: float | None
    baseline: float | None = None
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class MetricLine:
    """What all scores of one metric come to."""

    name: str
    mean: float
    lowest: float
    highest: float
    baseline: float | None
    number: int
    chance: float = 0.0  # how far from its baseline the mean gets by chance


def metric_lines(rows: Sequence[ScoreRow]) -> list[MetricLine]:
    """Summarise the scores of each metric; lines without a finite value report failures and do not count."""
    lines = []
    for name in dict.fromkeys(row.metric for row in rows if _is_figure(row.value)):
        values = [row.value for row in rows if row.metric == name and _is_figure(row.value)]
        baseline = [row.baseline for row in rows if row.metric == name and _is_figure(row.baseline)]
        pairs = [(row.value, row.baseline) for row in rows if row.metric == name]
        gaps = [value - blind for value, blind in pairs if _is_figure(value) and _is_figure(blind)]
        lines.append(
            MetricLine(
                name=name,
                mean=fmean(values),
                lowest=min(values),
                highest=max(values),
                baseline=fmean(baseline) if baseline else None,
                number=len(values),
                chance=chance(gaps),
            )
        )
    return lines


def _is_figure(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)


def as_figure(value: float | None) -> str:
    """Return a number as tables show it: three decimals, or none where it is large or a count."""
    if value is None:
        return "–"
    counts = abs(value) >= 1000 and value == round(value)
    return f"{value:,.0f}" if abs(value) >= 10_000 or counts else f"{value:.3f}"
