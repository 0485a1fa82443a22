"""Figures of one run: accuracy, labels, pictures, the attack's objective, scores, counts."""

import math
from collections.abc import Mapping, Sequence

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from fedsim.core.types import RoundResult
from fedsim.report.figures.style import GUESSED, INK, SHARES, TRUE, clean, literal

COUNTED = 13  # examples of a class: 0 to 11, and 12 or more


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
        clean(axes)
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
    clean(axes)
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
    clean(axes)
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
        clean(axes)
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
