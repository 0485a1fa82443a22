"""Figures of one run: curves over rounds, labels, pictures, the attack's objective, counts."""

from collections.abc import Collection, Mapping, Sequence

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from fedsim.report.figures.style import (
    BLIND,
    CELL,
    INK,
    LINES,
    NARROW,
    PLAIN,
    SMALL,
    TRUE,
    cell,
    clean,
    literal,
    marked,
    settle,
    titled,
)

COUNTED = 13  # examples of a class: 0 to 11, and 12 or more


def rounds_figure(
    title: str,
    values: Mapping[int, float],
    *,
    bounded: bool = False,
    blind: Mapping[int, float] | None = None,
    leaks: Collection[int] | None = None,
    accuracy: Mapping[int, float] | None = None,
) -> Figure:
    """Draw a figure over rounds; bounded: between 0 and 1; blind: its baseline.

    leaks: it is an attack's, and leaks in these rounds. accuracy: that of the weights that each round began
    with, to draw it over in place of rounds.
    """
    figure = Figure(figsize=(NARROW, 2.5 + 0.17 * 2 * bool(blind)), layout="constrained")
    axes = figure.subplots()
    places = accuracy or {round: float(round) for round in values}
    order, known = sorted(places, key=lambda round: places[round]), blind or {}
    rounds, heights = [places[round] for round in order], [values[round] for round in order]
    if leaks is None:
        axes.plot(rounds, heights, color=PLAIN, marker="o" if len(rounds) < 40 else "", ms=4)
    else:
        marked(axes, rounds, heights, [round in leaks for round in order])
    if known:
        guessed = [(x, known[round]) for x, round in zip(rounds, order, strict=True) if round in known]
        axes.plot(*zip(*guessed, strict=True), ls="--", lw=1.2, color=BLIND, label="blind guess")
        figure.legend(loc="outside lower left", frameon=False, fontsize=SMALL)
    settle(axes, [*heights, *known.values()])
    if bounded:
        axes.set_ylim(min(0.0, 1.05 * min(heights)), 1.05)
    if accuracy:
        axes.set_xlabel("test accuracy of the model that was sent")
    else:
        axes.set_xlabel("round")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    titled(figure, title)
    clean(axes)
    return figure


def label_figure(true: Tensor | None, guessed: Tensor, title: str, presence_only: bool) -> Figure:
    """Draw true against restored labels: a pair of bars a class, or of most frequent classes if many.

    Without true labels, the restored ones alone.
    """
    figure = Figure(figsize=(NARROW, 2.5), layout="constrained")
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
        axes.plot(found, [0] * len(found), "^", color=PLAIN, ms=8, clip_on=False, label="said to be present")
    else:
        axes.bar([x + 0.2 for x in places], heights, 0.4, color=PLAIN, label="restored")
    apart = 1 + len(classes) // 15  # as many names as can be read
    axes.set_xticks(list(places)[::apart], [str(c) for c in classes[::apart]])
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("class")
    axes.set_ylabel("examples")
    titled(figure, title)
    axes.legend(frameon=False, fontsize=SMALL, loc="upper right", bbox_to_anchor=(1, 1.02), ncols=2)
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
    figure = Figure(figsize=(0.4 + 0.92 * columns, 0.5 + 0.9 * len(rows)), layout="constrained")
    panels = figure.subplots(len(rows), columns, squeeze=False)
    for row, (name, images) in zip(panels, rows.items(), strict=True):
        for axes, image in zip(row, images, strict=True):
            pixels = image.clamp(0, 1).permute(1, 2, 0).numpy()
            shown = pixels if pixels.shape[2] == 3 else pixels[:, :, 0]
            axes.imshow(shown, cmap="gray", vmin=0, vmax=1, interpolation="none")
            axes.set_xticks([])
            axes.set_yticks([])
            for spine in axes.spines.values():
                spine.set_color(TRUE)
        row[0].set_ylabel(name, fontsize=SMALL, color=INK)
    for axes, caption in zip(panels[-1], captions, strict=True):
        axes.set_xlabel(caption, fontsize=SMALL, color=INK)
    return figure


def trace_figure(traces: Mapping[str, Sequence[float]]) -> Figure:
    """Draw the attack's own objective over its iterations, a line for each attacked client."""
    figure = Figure(figsize=(NARROW, 2.4 + 0.18 * len(traces)), layout="constrained")
    axes = figure.subplots()
    for place, (label, values) in enumerate(traces.items()):
        places = [100 * step / max(1, len(values) - 1) for step in range(len(values))]
        marker, colour = "o" if len(values) < 30 else "", LINES[place % len(LINES)]
        axes.plot(places, values, lw=1.2, marker=marker, ms=3, color=colour, label=literal(label, 44))
    if all(value > 0 for values in traces.values() for value in values):
        axes.set_yscale("log")
    settle(axes, [value for values in traces.values() for value in values])
    axes.set_xlabel("% of the iterations")
    titled(figure, "objective of the attack")
    figure.legend(loc="outside lower left", frameon=False, fontsize=SMALL)
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
    figure = Figure(figsize=(NARROW, NARROW), layout="constrained")
    axes = figure.subplots()
    shades = 0.5 * (table.float() / table.max()).sqrt()
    for row in range(size):
        for column in range(size):
            if number := int(table[row, column]):
                colour, shade = PLAIN if row == column else TRUE, float(shades[row, column])
                axes.add_patch(cell(column, row, colour, shade))
                axes.text(column, row, str(number), ha="center", va="center", fontsize=SMALL, color=CELL)
    labels = [str(number) for number in range(size - 1)] + [
        f"{size - 1}" if size < COUNTED else f"{size - 1}+"
    ]
    axes.set_xlim(-0.5, size - 0.5)
    axes.set_ylim(-0.5, size - 0.5)
    axes.set_xticks(range(size), labels)
    axes.set_yticks(range(size), labels)
    axes.set_xlabel("true number of examples")
    axes.set_ylabel("restored number")
    titled(figure, "classes, over all attacked batches")
    clean(axes)
    return figure
