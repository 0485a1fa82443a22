"""The report's figures, drawn without a display. Every function returns a matplotlib figure."""

import math
import textwrap
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from fedsim.core.errors import printable
from fedsim.core.types import RoundResult

TRUE, GUESSED = "#9aa5b1", "#d64545"
INK = "#323f4b"
COUNTED = 13  # examples of a class: 0 to 11, and 12 or more
ERRORS = ("image_error", "embedding_error")  # relative ones, with a rate
SHARES = ("leacc", "lnacc", "irec", "accuracy", "ssim", "embedding_cosine", "probability_cosine")  # 0 to 1


def literal(words: str, longest: int = 80) -> str:
    """Return words of others as a label: in one line, not too long, and no formula to matplotlib."""
    shown = printable(words, keep="")[:longest].replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown  # a legend leaves out what begins so


def wrapped(words: str, width: int, lines: int) -> str:
    """Return words of others as a label of several lines."""
    return "\n".join(map(literal, textwrap.wrap(printable(words, keep=""), width)[:lines]))


def accuracy_figure(history: Sequence[RoundResult]) -> Figure:
    """Draw test accuracy and test loss over rounds, side by side."""
    figure = Figure(figsize=(7.5, 2.5), layout="constrained")
    rounds = [result.round for result in history]
    curves = {
        "test accuracy": [result.accuracy for result in history],
        "test loss": [result.loss for result in history],
    }
    for axes, (name, values) in zip(figure.subplots(1, 2), curves.items(), strict=True):
        axes.plot(rounds, values, color=GUESSED, marker="o" if len(rounds) < 40 else "", ms=4)
        finite = [value for value in values if math.isfinite(value)]
        axes.set_ylim(0, 1 if name == "test accuracy" else 1.1 * max([*finite, 0.1]))
        axes.set_xlabel("round")
        axes.set_title(name, fontsize=10, color=INK)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        _clean(axes)
    return figure


def label_figure(true: Tensor | None, guessed: Tensor, title: str, presence_only: bool) -> Figure:
    """Draw true against restored labels: a pair of bars a class, or of most frequent classes if many.

    Without true labels, the restored ones alone.
    """
    figure = Figure(figsize=(4.4, 2.4), layout="constrained")
    axes = figure.subplots()
    known = torch.zeros_like(guessed) if true is None else true
    classes = list(range(len(known)))
    if len(classes) > 40:  # only classes that are there, or were said to be
        classes = [c for c in classes if known[c] or guessed[c]][:40]
    places = range(len(classes))
    if true is not None:
        axes.bar([x - 0.2 for x in places], [int(true[c]) for c in classes], 0.4, color=TRUE, label="true")
    heights = [int(guessed[c]) for c in classes]
    if presence_only:  # no counts were claimed: mark the classes said to be present
        found = [x for x, height in zip(places, heights, strict=True) if height]
        axes.plot(
            found, [0] * len(found), "^", color=GUESSED, ms=8, clip_on=False, label="said to be present"
        )
    else:
        axes.bar([x + 0.2 for x in places], heights, 0.4, color=GUESSED, label="restored")
    axes.set_xticks(list(places), [str(c) for c in classes], fontsize=8 if len(classes) <= 20 else 5)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("class")
    axes.set_ylabel("examples")
    axes.set_title(literal(title), fontsize=10, color=INK)
    axes.legend(frameon=False, fontsize=8, loc="upper right", bbox_to_anchor=(1, 1.02), ncols=2)
    axes.set_ylim(top=1.3 * max(1, int(known.max()), int(guessed.max())))
    _clean(axes)
    return figure


def picture_figure(true: Tensor | None, guessed: Tensor, captions: Sequence[str]) -> Figure:
    """Draw true images, guesses and their absolute difference in rows, a caption under each column.

    Without true images, the guesses alone.
    """
    rows = {"guess": guessed}
    if true is not None:
        rows = {"true": true, "guess": guessed, "difference": (true - guessed).abs()}
    columns = len(guessed)
    figure = Figure(figsize=(0.4 + 1.05 * columns, 0.4 + 1.1 * len(rows)), layout="constrained")
    panels = figure.subplots(len(rows), columns, squeeze=False)
    for row, (name, images) in zip(panels, rows.items(), strict=True):
        for axes, image in zip(row, images, strict=True):
            pixels = image.clamp(0, 1).permute(1, 2, 0).numpy()
            coloured = pixels.shape[2] == 3
            axes.imshow(pixels if coloured else pixels[:, :, 0], cmap="gray", vmin=0, vmax=1)
            axes.set_xticks([])
            axes.set_yticks([])
            for spine in axes.spines.values():
                spine.set_color(TRUE)
        row[0].set_ylabel(name, fontsize=9, color=INK)
    for axes, caption in zip(panels[-1], captions, strict=True):
        axes.set_xlabel(caption, fontsize=7, color=INK)
    return figure


def trace_figure(traces: Mapping[str, Sequence[float]]) -> Figure:
    """Draw the attack's own objective over its iterations, a line for each attacked client."""
    figure = Figure(figsize=(6.5, 2.6), layout="constrained")
    axes = figure.subplots()
    for label, values in traces.items():
        places = [100 * place / max(1, len(values) - 1) for place in range(len(values))]
        axes.plot(places, values, lw=1.2, marker="o" if len(values) < 30 else "", ms=3, label=literal(label))
    if all(value > 0 for values in traces.values() for value in values):
        axes.set_yscale("log")
    axes.set_xlabel("% of the iterations")
    axes.set_title("objective of the attack", fontsize=10, color=INK)
    axes.legend(frameon=False, fontsize=8)
    _clean(axes)
    return figure


def scores_figure(rounds: Mapping[str, Mapping[int, float]]) -> Figure:
    """Draw each metric's mean over the clients of a round, round by round."""
    figure = Figure(figsize=(1 + 2.6 * len(rounds), 2.5), layout="constrained")
    panels = figure.subplots(1, len(rounds), squeeze=False)[0]
    for axes, (name, values) in zip(panels, rounds.items(), strict=True):
        axes.plot(list(values), list(values.values()), color=GUESSED, marker="o", ms=4)
        if name in SHARES:
            axes.set_ylim(0, 1.05)
        axes.set_xlabel("round")
        axes.set_title(literal(name, 40), fontsize=10, color=INK)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        _clean(axes)
    return figure


def count_table(true: Tensor, guessed: Tensor) -> Tensor:
    """Return how often a class with so many true examples (columns) was given so many (rows), at most 12."""
    places = guessed.clamp(0, COUNTED - 1) * COUNTED + true.clamp(0, COUNTED - 1)
    return places.bincount(minlength=COUNTED**2).view(COUNTED, COUNTED)


def confusion_figure(table: Tensor) -> Figure:
    """Draw a sum of such tables: the diagonal is right."""
    size = int(table.nonzero().max()) + 1
    table = table[:size, :size]
    figure = Figure(figsize=(3.6, 3.2), layout="constrained")
    axes = figure.subplots()
    axes.imshow(table.float().sqrt().numpy(), cmap="Reds", origin="lower")
    for row in range(size):
        for column in range(size):
            if number := int(table[row, column]):
                ink = "w" if number > 0.4 * int(table.max()) else INK
                axes.text(column, row, str(number), ha="center", va="center", fontsize=7, color=ink)
    labels = [str(number) for number in range(size - 1)] + [
        f"{size - 1}" if size < COUNTED else f"{size - 1}+"
    ]
    axes.set_xticks(range(size), labels, fontsize=7)
    axes.set_yticks(range(size), labels, fontsize=7)
    axes.set_xlabel("true number of examples")
    axes.set_ylabel("restored number")
    axes.set_title("classes, over all attacked batches", fontsize=9, color=INK)
    return figure


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


def curve_figure(name: str, curves: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]]) -> Figure:
    """Draw metrics (panels) against one swept setting, a line for every group of runs."""
    figure = Figure(figsize=(1 + 3.0 * len(curves), 3.0), layout="constrained")
    panels = figure.subplots(1, len(curves), squeeze=False)[0]
    for axes, (metric, groups) in zip(panels, curves.items(), strict=True):
        for label, points in groups.items():
            axes.plot(
                *zip(*sorted(points), strict=True), marker="o", ms=4, label=wrapped(label, 36, 4) or None
            )
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
        _clean(axes)
    if panels[0].get_legend_handles_labels()[1]:
        panels[0].legend(frameon=False, fontsize=8)
    return figure


def sweep_figure(
    labels: Sequence[str], metrics: Mapping[str, Sequence[float | None]], complete: Sequence[bool]
) -> Figure:
    """Draw one panel a metric, one bar a run."""
    shown = [literal(label, 40) for label in labels]
    width = 1.6 + 1.7 * len(metrics) + (2.0 if max(map(len, shown)) > 24 else 0.0)
    figure = Figure(figsize=(width, 1.1 + 0.28 * len(labels)), layout="constrained")
    panels = figure.subplots(1, len(metrics), sharey=True, squeeze=False)[0]
    for axes, (name, values) in zip(panels, metrics.items(), strict=True):
        axes.barh(range(len(labels)), [value or 0 for value in values], color=GUESSED, height=0.6)
        for place, value in enumerate(values):
            if value is None:  # the attack does not claim this
                words = " not claimed" if complete[place] else " failed"
                axes.text(0, place, words, va="center", fontsize=7, color=TRUE)
        axes.set_title(literal(name, 40), fontsize=10, color=INK)
        if name in SHARES:
            axes.set_xlim(0, 1)
        _clean(axes)
    panels[0].set_yticks(range(len(labels)), shown, fontsize=8)
    panels[0].invert_yaxis()
    return figure


def heat_figure(
    metric: str,
    rows: Sequence[str],
    columns: Sequence[str],
    table: Sequence[Sequence[float | None]],
    marks: Sequence[Sequence[str]],
    lower_is_worse: bool,
) -> Figure:
    """Draw a metric of every attack (rows) against every defence (columns): red leaks; marks: where None."""
    figure = Figure(figsize=(2.2 + 0.62 * len(columns), 1.5 + 0.4 * len(rows)), layout="constrained")
    axes = figure.subplots()
    values = np.array([[np.nan if value is None else value for value in row] for row in table], dtype=float)
    if metric in SHARES:
        low, high = 0.0, 1.0
    else:
        low, high = float(np.nanmin(values)), float(np.nanmax(values))
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
    axes.set_title(literal(metric, 40) + lower, fontsize=10, color=INK)
    return figure


def scatter_figure(metric: str, points: Mapping[str, tuple[float, float]], front: Collection[str]) -> Figure:
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
    axes.set_xlabel("test accuracy")
    axes.set_ylabel(f"{literal(metric, 40)}, best attack")
    axes.margins(x=0.2, y=0.15)
    _clean(axes)
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
    _clean(axes)
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


def _clean(axes: object) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)  # type: ignore[attr-defined]
