"""Figures over the runs of a sweep: curves against a setting, bars."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedsim.report.figures.style import BLIND, GUESSED, INK, SHARES, TRUE, clean, literal, wrapped

ERRORS = ("image_error", "embedding_error")  # relative ones, with a rate


def _fit(axes: Axes, groups: Mapping[str, Sequence[tuple[float, float]]]) -> None:
    """Draw an error on logarithmic axes, with the straight line that fits it: its slope is the rate."""
    axes.set_yscale("log")
    for points in groups.values():
        known = [(math.log(x), math.log(y)) for x, y in points if x > 0 and y > 0]
        if len({x for x, _ in known}) >= 3:
            slope, height = np.polyfit([x for x, _ in known], [y for _, y in known], 1)
            ends = [min(known)[0], max(known)[0]]
            heights = [math.exp(height + slope * x) for x in ends]
            label = f"slope {slope:.2f}"
            axes.plot([math.exp(x) for x in ends], heights, "--", color=INK, lw=1, label=label)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(frameon=False, fontsize=8)


def curve_figure(
    name: str,
    curves: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]],
    blind: Mapping[str, Sequence[tuple[float, float]]] | None = None,
) -> Figure:
    """Draw metrics (panels) against one swept setting, a line for every group of runs; dashed: baselines."""
    columns = min(3, len(curves))
    rows = -(-len(curves) // columns)
    figure = Figure(figsize=(1 + 3.4 * columns, 2.8 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes in panels[len(curves) :]:
        axes.set_axis_off()
    for axes, (metric, groups) in zip(panels, curves.items(), strict=False):
        for label, points in groups.items():
            axes.plot(
                *zip(*sorted(points), strict=True), marker="o", ms=4, label=wrapped(label, 36, 4) or None
            )
        if baselines := (blind or {}).get(metric, ()):
            means = [
                (x, fmean(y for at, y in baselines if at == x)) for x in sorted({x for x, _ in baselines})
            ]
            axes.plot(*zip(*means, strict=True), ls="--", lw=1.2, color=BLIND, label="baseline")
        places = sorted({x for points in groups.values() for x, _ in points})
        if places[0] > 0 and places[-1] / places[0] >= 8:
            axes.set_xscale("log")
            axes.set_xticks(places, [f"{x:g}" for x in places], fontsize=8)
            axes.minorticks_off()
            if metric in ERRORS:
                _fit(axes, groups)
        if metric in SHARES:
            axes.set_ylim(0, 1.05)
        axes.set_xlabel(literal(name))
        axes.set_title(literal(metric, 40), fontsize=10, color=INK)
        clean(axes)
    if panels[0].get_legend_handles_labels()[1]:
        panels[0].legend(frameon=False, fontsize=8)
    return figure


def sweep_figure(
    labels: Sequence[str],
    metrics: Mapping[str, Sequence[float | None]],
    complete: Sequence[bool],
    blind: Mapping[str, Sequence[float | None]] | None = None,
) -> Figure:
    """Draw one panel a metric, one bar a run, and a stroke across it where its baseline is."""
    shown = [literal(label, 40) for label in labels]
    width = 1.6 + 1.7 * len(metrics) + (2.0 if max(map(len, shown)) > 24 else 0.0)
    figure = Figure(figsize=(width, 1.1 + 0.28 * len(labels)), layout="constrained")
    panels = figure.subplots(1, len(metrics), sharey=True, squeeze=False)[0]
    for axes, (name, values) in zip(panels, metrics.items(), strict=True):
        axes.barh(range(len(labels)), [value or 0 for value in values], color=GUESSED, height=0.6)
        for place, baseline in enumerate((blind or {}).get(name, ())):
            if baseline is not None:
                axes.plot([baseline, baseline], [place - 0.42, place + 0.42], "--", lw=1.2, color=BLIND)
        for place, value in enumerate(values):
            if value is None:  # the attack does not claim this
                words = " not claimed" if complete[place] else " failed"
                axes.text(0, place, words, va="center", fontsize=7, color=TRUE)
        axes.set_title(literal(name, 40), fontsize=10, color=INK)
        if name in SHARES:
            axes.set_xlim(0, 1)
        clean(axes)
    panels[0].set_yticks(range(len(labels)), shown, fontsize=8)
    panels[0].invert_yaxis()
    return figure
