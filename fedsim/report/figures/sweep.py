"""Figures over the runs of a sweep: curves against a setting, bars."""

import math
from collections.abc import Collection, Mapping, Sequence
from itertools import compress
from statistics import fmean

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedsim.metrics.facts import MetricFacts
from fedsim.report.figures.style import (
    BLIND,
    INK,
    LEAK,
    LINES,
    NARROW,
    PLAIN,
    SMALL,
    SOFT,
    TRUE,
    clean,
    in_bytes,
    literal,
    marked,
    settle,
    titled,
    wrapped,
)

ERRORS = ("image_error", "embedding_error")  # relative ones, with a rate
Points = Sequence[tuple[float, float]]


def _fit(axes: Axes, groups: Mapping[str, Points]) -> None:
    """Draw an error on logarithmic axes, with the straight line that fits it: its slope is the rate."""
    axes.set_yscale("log")
    for points in groups.values():
        known = [(math.log(x), math.log(y)) for x, y in points if x > 0 and y > 0]
        if len({x for x, _ in known}) >= 3:
            slope, height = np.polyfit([x for x, _ in known], [y for _, y in known], 1)
            ends = [min(known)[0], max(known)[0]]
            heights = [math.exp(height + slope * x) for x in ends]
            label = f"slope {slope:.2f}"
            axes.plot([math.exp(x) for x in ends], heights, ":", color=INK, lw=1, label=label)


def curve_figure(
    setting: str,
    metric: MetricFacts,
    groups: Mapping[str, Points],
    blind: Points = (),
    leaks: Collection[float] = (),
) -> Figure:
    """Draw a metric against a swept setting, a line for every group of runs; dashed: the baseline.

    leaks: where the only group's mean is a leak.
    """
    lines = sum(wrapped(label, 44, 3).count("\n") + 1 for label in groups if label) + bool(blind)
    figure = Figure(figsize=(NARROW, 2.5 + 0.17 * lines), layout="constrained")
    axes = figure.subplots()
    guessed = {x: fmean(heights) for x, heights in _by_place(blind).items()}
    for place, (label, points) in enumerate(groups.items()):
        known, colour = _by_place(points), LINES[place % len(LINES)] if len(groups) > 1 else PLAIN
        places, means = list(known), [fmean(heights) for heights in known.values()]
        if len(groups) == 1 and metric.leaks:
            marked(axes, places, means, [x in leaks for x in places])
            colour = SOFT
        else:
            axes.plot(places, means, marker="o", ms=4, color=colour, label=wrapped(label, 44, 3) or None)
        for x, heights in known.items():
            if len(heights) > 1:  # seeds: their range
                axes.plot([x, x], [min(heights), max(heights)], color=colour, lw=1, alpha=0.7)
    if blind:
        axes.plot(list(guessed), list(guessed.values()), ls="--", lw=1.2, color=BLIND, label="blind guess")
    places = sorted({x for points in groups.values() for x, _ in points})
    if places[0] > 0 and places[-1] / places[0] >= 8:
        axes.set_xscale("log")
        shown = places[:: 1 + len(places) // 8]
        axes.set_xticks(shown, [f"{x:g}" for x in shown])
        axes.minorticks_off()
        if metric.name in ERRORS:
            _fit(axes, groups)
    heights = [y for points in (*groups.values(), blind) for _, y in points]
    settle(axes, heights)
    if metric.bounded:
        axes.set_ylim(min(0.0, 1.05 * min(heights)), 1.05)
    if metric.unit == "bytes":
        in_bytes(axes.yaxis)
    axes.set_xlabel(literal(setting, 50))
    titled(figure, metric.with_unit)
    if axes.get_legend_handles_labels()[1]:
        figure.legend(loc="outside lower left", frameon=False, fontsize=SMALL)
    clean(axes)
    return figure


def _by_place(points: Points) -> dict[float, list[float]]:
    """Return the heights at every place, in order."""
    found: dict[float, list[float]] = {}
    for x, y in sorted(points):
        found.setdefault(x, []).append(y)
    return found


def bars_figure(
    metric: MetricFacts,
    labels: Sequence[str],
    values: Sequence[float | None],
    complete: Sequence[bool],
    blind: Sequence[float | None] = (),
    leaks: Sequence[bool] = (),
) -> Figure:
    """Draw one bar a run, red where it leaks, and a stroke across it where its baseline is."""
    shown = [wrapped(label, 22, 2) for label in labels]
    figure = Figure(figsize=(NARROW, 0.9 + 0.34 * len(labels)), layout="constrained")
    axes = figure.subplots()
    red, plain = set(compress(range(len(values)), leaks)), TRUE if metric.leaks else PLAIN
    colours = [LEAK if place in red else plain for place in range(len(values))]
    axes.barh(range(len(labels)), [value or 0 for value in values], color=colours, height=0.6)
    for place, baseline in enumerate(blind):
        if baseline is not None:
            axes.plot([baseline, baseline], [place - 0.42, place + 0.42], "--", lw=1.6, color=BLIND)
    for place, value in enumerate(values):
        if value is None:  # the attack does not claim this
            words, apart = "not claimed" if complete[place] else "failed", (5, 0)
            axes.annotate(words, (0, place), apart, textcoords="offset points", va="center", color=SOFT)
    titled(figure, metric.with_unit)
    if metric.unit == "bytes":
        in_bytes(axes.xaxis)
    if metric.bounded:
        axes.set_xlim(min([0.0, *(value for value in values if value is not None)]), 1)
    axes.set_yticks(range(len(labels)), shown)
    axes.invert_yaxis()
    clean(axes)
    return figure
