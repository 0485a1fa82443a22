"""Figures of a comparison: attacks against defences."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from fedsim.report.figures.style import BLIND, GUESSED, INK, SHARES, TRUE, clean, literal, wrapped


def heat_figure(
    metric: str,
    rows: Sequence[str],
    columns: Sequence[str],
    table: Sequence[Sequence[float | None]],
    marks: Sequence[Sequence[str]],
    lower_is_worse: bool,
    blind: float | None = None,
) -> Figure:
    """Draw a metric of every attack (rows) against every defence (columns); marks: where None.

    blind: the baseline. Red begins there: what a guess without a gradient gets is no leak.
    """
    figure = Figure(figsize=(2.2 + 0.62 * len(columns), 1.5 + 0.4 * len(rows)), layout="constrained")
    axes = figure.subplots()
    values = np.array([[np.nan if value is None else value for value in row] for row in table], dtype=float)
    if metric in SHARES:
        low, high = 0.0, 1.0
    else:
        low, high = float(np.nanmin(values)), float(np.nanmax(values))
    if blind is not None:
        low, high = (low, blind) if lower_is_worse else (blind, high)
        low, high = min(low, high), max(low, high)
    axes.imshow(
        values,
        cmap="Reds_r" if lower_is_worse else "Reds",
        vmin=low,
        vmax=max(high, low + 1e-9),
        aspect="auto",
    )
    for place, row in enumerate(table):
        for number, value in enumerate(row):
            words = f"{value:.2f}" if value is not None and abs(value) < 10 else f"{value or 0:.0f}"
            words = marks[place][number] if value is None else words
            share = 0.0 if value is None else (value - low) / max(high - low, 1e-9)
            dark = (1 - share if lower_is_worse else share) > 0.6 and value is not None
            axes.text(number, place, words, ha="center", va="center", fontsize=8, color="w" if dark else INK)
    below, beside = ([literal(name, 28) for name in names] for names in (columns, rows))
    axes.set_xticks(range(len(columns)), below, rotation=30, ha="right", fontsize=8)
    axes.set_yticks(range(len(rows)), beside, fontsize=8)
    lower = " (lower leaks more)" if lower_is_worse else ""
    baseline = "" if blind is None else f", baseline {blind:.2f}"
    axes.set_title(literal(metric, 40) + lower + baseline, fontsize=10, color=INK)
    return figure


def scatter_figure(
    metric: str,
    points: Mapping[str, tuple[float, float]],
    front: Collection[str],
    blind: float | None = None,
) -> Figure:
    """Draw test accuracy against the best that any attack got; defences that no other beats are filled."""
    figure = Figure(figsize=(7.6, 3.8), layout="constrained")
    axes = figure.subplots()
    together: dict[tuple[int, int], list[str]] = {}  # numbers of points that would cover each other
    notes: dict[tuple[int, int], Annotation] = {}
    spread = [max(1e-9, max(axis) - min(axis)) for axis in zip(*points.values(), strict=True)]
    for number, (name, (accuracy, leak)) in enumerate(points.items(), start=1):
        filled = GUESSED if name in front else "none"
        axes.plot(
            accuracy, leak, "o", ms=7, color=GUESSED, mfc=filled, label=f"{number}  {literal(name, 34)}"
        )
        place = round(14 * accuracy / spread[0]), round(16 * leak / spread[1])
        together.setdefault(place, []).append(str(number))
        first = list(points.values())[int(together[place][0]) - 1]
        if together[place] == [str(number)]:
            note = axes.annotate("", first, xytext=(5, 5), textcoords="offset points", fontsize=8, color=INK)
            notes[place] = note
        notes[place].set_text(" ".join(together[place]))
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=7.5, handlelength=0.8)
    line = sorted(points[name] for name in front)
    axes.plot([x for x, _ in line], [y for _, y in line], "--", color=TRUE, lw=1, zorder=0)
    if blind is not None:
        axes.axhline(blind, ls="--", lw=1.2, color=BLIND, zorder=0)
    axes.set_xlabel("test accuracy")
    axes.set_ylabel(f"{literal(metric, 40)}, best attack")
    axes.margins(x=0.2, y=0.15)
    clean(axes)
    return figure


def curves_figure(name: str, curves: Mapping[str, Sequence[tuple[float, float]]]) -> Figure:
    """Draw one value over rounds, a line for each defence."""
    figure = Figure(figsize=(7.6, 3.8), layout="constrained")
    axes = figure.subplots()
    palette = colormaps["tab20"]
    axes.set_prop_cycle(color=[palette(place % 20) for place in range(len(curves))])
    for label, points in curves.items():
        axes.plot([x for x, _ in points], [y for _, y in points], marker="o", ms=3, label=literal(label, 34))
    axes.set_xlabel("round")
    axes.set_title(literal(name), fontsize=10, color=INK)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=7.5)
    clean(axes)
    return figure


def rows_figure(
    attack: str,
    truth: Sequence[Tensor],
    rows: Mapping[str, Sequence[Tensor]],
    captions: Mapping[str, Sequence[str]],
) -> Figure:
    """Draw true images on top, then a row for each defence."""
    figure = Figure(figsize=(1.6 + 0.9 * len(truth), 0.6 + 1.15 * (1 + len(rows))), layout="constrained")
    panels = figure.subplots(1 + len(rows), len(truth), squeeze=False)
    shown: list[tuple[str, Sequence[Tensor], Sequence[str]]] = [("true", truth, [""] * len(truth))]
    shown += [(name, images, captions[name]) for name, images in rows.items()]
    for panel, (name, images, below) in zip(panels, shown, strict=True):
        for axes, image, caption in zip(panel, images, below, strict=True):
            pixels = image.clamp(0, 1).permute(1, 2, 0).numpy()
            axes.imshow(pixels if pixels.shape[2] == 3 else pixels[:, :, 0], cmap="gray", vmin=0, vmax=1)
            axes.set_xticks([])
            axes.set_yticks([])
            axes.set_xlabel(caption, fontsize=7, color=INK)
        beside = wrapped(name, 18, 6)
        panel[0].set_ylabel(beside, fontsize=7, color=INK, rotation=0, ha="right", va="center")
    figure.suptitle(f"{literal(attack)}: the first batch behind each defence", fontsize=10, color=INK)
    return figure
