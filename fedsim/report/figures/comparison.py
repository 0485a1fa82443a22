"""Figures of a comparison: attacks against defenses."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from fedsim.metrics.facts import MetricFacts
from fedsim.report.figures.style import (
    BLIND,
    CELL,
    INK,
    LEAK,
    LINES,
    NARROW,
    PLAIN,
    SMALL,
    SOFT,
    TRUE,
    cell,
    clean,
    literal,
    settle,
    titled,
    wrapped,
)

FULL = 0.8  # strength of the red of the largest leak: from here on, white words can be read on it


def heat_figure(
    metric: MetricFacts,
    rows: Sequence[str],
    columns: Sequence[str],
    table: Sequence[Sequence[float | None]],
    marks: Sequence[Sequence[str]],
    blind: float | None = None,
    leaks: Sequence[Sequence[bool]] | None = None,
) -> Figure:
    """Draw a metric of every attack (rows) against every defense (columns); marks: where None.

    blind: the baseline. Red begins there: what a guess without a gradient gets is no leak; leaks: what is.
    """
    beside, below = [wrapped(name, 20, 2) for name in rows], [literal(name, 28) for name in columns]
    figure = Figure(figsize=(2.0 + 0.55 * len(columns), 1.7 + 0.42 * len(rows)), layout="constrained")
    axes = figure.subplots()
    known = np.array([value for row in table for value in row if value is not None] or [0.0])
    best = float(known.max() if metric.highest else known.min())
    best = 1.0 if metric.bounded and metric.highest else 0.0 if not metric.highest else best
    start = blind if blind is not None else float(known.min() if metric.highest else known.max())
    beyond = best - start if metric.highest == (best > start) else 0.0  # 0: nothing leaks at all
    for place, row in enumerate(table):
        for number, value in enumerate(row):
            stands_out = value is not None and beyond != 0 and (leaks is None or leaks[place][number])
            share = (value - start) / beyond if stands_out and value is not None else 0.0
            strength = FULL * min(1.0, max(0.0, share))
            axes.add_patch(cell(number, place, LEAK, strength))
            words = marks[place][number] if value is None else _short(value)
            ink = "#ffffff" if strength >= 0.75 else CELL
            axes.text(number, place, words, ha="center", va="center", fontsize=SMALL, color=ink)
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xticks(range(len(columns)), below, rotation=30, ha="right")
    axes.set_yticks(range(len(rows)), beside)
    lower = "" if metric.highest else "; lower leaks more"
    baseline = "" if blind is None else f"; blind guess {_short(blind)}"
    titled(figure, metric.with_unit + lower + baseline)
    clean(axes)
    return figure


def _short(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.0f}"


def scatter_figure(
    metric: MetricFacts,
    points: Mapping[str, tuple[float, float]],
    front: Collection[str],
    blind: float | None = None,
    leaking: Collection[str] | None = None,
) -> Figure:
    """Draw test accuracy against the best that any attack got; defenses that no other beats are filled.

    leaking: behind which something leaks; None: where the best is above the baseline.
    """
    figure = Figure(figsize=(NARROW, 2.6 + 0.18 * len(points)), layout="constrained")
    axes = figure.subplots()
    for number, (name, (accuracy, leak)) in enumerate(points.items(), start=1):
        above = blind is None or metric.better(leak, blind)
        colour = LEAK if (above if leaking is None else name in leaking) else SOFT
        filled, label = colour if name in front else "none", f"{number}  {literal(name, 40)}"
        axes.plot(accuracy, leak, "o", ms=7, color=colour, mfc=filled, label=label)
    figure.legend(loc="outside lower left", frameon=False, fontsize=SMALL, handlelength=0.8)
    line = sorted(points[name] for name in front)
    axes.plot([x for x, _ in line], [y for _, y in line], ":", color=TRUE, lw=1, zorder=0)
    if blind is not None:
        axes.axhline(blind, ls="--", lw=1.2, color=BLIND, zorder=0)
    axes.margins(x=0.2, y=0.15)
    settle(axes, [leak for _, leak in points.values()])
    _number(axes, list(points.values()))
    axes.set_xlabel("test accuracy")
    titled(figure, f"{metric.with_unit}, best attack")
    clean(axes)
    return figure


def _number(axes: Axes, points: Sequence[tuple[float, float]]) -> None:
    """Write beside each point its number; points whose numbers would cover each other share a place."""
    ranges = [high - low for low, high in (axes.get_xlim(), axes.get_ylim())]
    groups = list[list[int]]()
    for number, point in enumerate(points):
        for group in groups:
            apart = [abs(a - b) / r for a, b, r in zip(point, points[group[0]], ranges, strict=True)]
            if apart[0] < 0.08 * len(group) and apart[1] < 0.12:
                group.append(number)
                break
        else:
            groups.append([number])
    for group in groups:
        axes.annotate(
            " ".join(str(number + 1) for number in group),
            points[group[0]],
            xytext=(5, 5),
            textcoords="offset points",
            fontsize=SMALL,
            color=INK,
        )


def curves_figure(name: str, curves: Mapping[str, Sequence[tuple[float, float]]]) -> Figure:
    """Draw one value over rounds, a line for each defense."""
    figure = Figure(figsize=(NARROW, 2.4 + 0.18 * len(curves)), layout="constrained")
    axes = figure.subplots()
    for place, (label, points) in enumerate(curves.items()):
        style = ("-", "--", ":", "-.")[place % 4]  # of two that coincide, both are seen
        axes.plot(
            [x for x, _ in points],
            [y for _, y in points],
            ls=style,
            color=LINES[place % len(LINES)] if len(curves) > 1 else PLAIN,
            marker="o",
            ms=3,
            label=literal(label, 44),
        )
    settle(axes, [y for points in curves.values() for _, y in points])
    axes.set_xlabel("round")
    titled(figure, name)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.legend(loc="outside lower left", frameon=False, fontsize=SMALL)
    clean(axes)
    return figure


def rows_figure(
    attack: str,
    truth: Sequence[Tensor],
    rows: Mapping[str, Sequence[Tensor]],
    captions: Mapping[str, Sequence[str]],
) -> Figure:
    """Draw true images on top, then a row for each defense."""
    figure = Figure(figsize=(1.6 + 0.8 * len(truth), 0.5 + 1.0 * (1 + len(rows))), layout="constrained")
    panels = figure.subplots(1 + len(rows), len(truth), squeeze=False)
    shown: list[tuple[str, Sequence[Tensor], Sequence[str]]] = [("true", truth, [""] * len(truth))]
    shown += [(name, images, captions[name]) for name, images in rows.items()]
    for panel, (name, images, below) in zip(panels, shown, strict=True):
        for axes, image, caption in zip(panel, images, below, strict=True):
            pixels = image.clamp(0, 1).permute(1, 2, 0).numpy()
            seen = pixels if pixels.shape[2] == 3 else pixels[:, :, 0]
            axes.imshow(seen, cmap="gray", vmin=0, vmax=1, interpolation="none")
            axes.set_xticks([])
            axes.set_yticks([])
            axes.set_xlabel(caption, fontsize=SMALL, color=INK)
        beside = wrapped(name, 18, 6)
        panel[0].set_ylabel(beside, fontsize=SMALL, color=INK, rotation=0, ha="right", va="center")
    figure.suptitle(f"{literal(attack)}: the first batch behind each defense", fontsize=9.5, color=INK)
    return figure
