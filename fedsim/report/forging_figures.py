"""Figures of forging games: errors, batches, what makes an example hard to replace, ROC curves."""

from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from fedsim.report.figures import INK, literal, wrapped
from fedsim.report.forging_table import CAUSES, by_forgery, in_words, suspected
from fedsim.storage.games import STATISTICS, MoveBatches, MoveRow

SHOWN = 10  # images of a batch in a picture
COLOURS = ("#d64545", "#3f7cac", "#e8a33d", "#7fb685", "#8d6a9f", "#4d9078", "#b56576", "#323f4b")
LOWEST = 1e-19  # where an error of 0 is drawn


def errors_figure(moves: Sequence[MoveRow]) -> Figure:
    """Draw errors of forgeries and of honest recomputation against the step, on a log axis."""
    judged = [move for move in moves if move.judged]
    figure = Figure(figsize=(7.5, 3.6), layout="constrained")
    axes = figure.subplots()
    forgeries = list(dict.fromkeys(move.name for move in judged))
    sizes = sorted({move.unwanted for move in judged})
    for move in judged:
        axes.plot(
            move.step,
            max(move.error or 0.0, LOWEST),
            "osD^v"[sizes.index(move.unwanted) % 5],
            color=COLOURS[forgeries.index(move.name) % len(COLOURS)],
            mfc="none" if not move.accepted else None,
            ms=6,
            alpha=0.8,
        )
    steps = sorted({move.step for move in judged})
    for name, style in (("benign", ":"), ("delta", "--")):
        heights = [max(max(getattr(m, name) for m in judged if m.step == step), LOWEST) for step in steps]
        label = "honest error" if name == "benign" else "delta"
        axes.plot(steps, heights, style, color=INK, marker="_" if len(steps) == 1 else "", ms=30, label=label)
    for place, name in enumerate(forgeries):
        axes.plot([], [], "o", color=COLOURS[place % len(COLOURS)], label=wrapped(name, 32, 4))
    if len(sizes) > 1:
        for place, size in enumerate(sizes):
            axes.plot([], [], "osD^v"[place % 5], color="#9aa5b1", mfc="none", label=f"{size} replaced")
    axes.set_yscale("log")
    axes.set_xlabel("step of the trace")
    axes.set_ylabel("l2 error of the update")
    axes.set_title("filled: accepted", fontsize=9, color=INK, loc="left")
    figure.legend(loc="outside right upper", fontsize=8, frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure


def pictures_figure(move: MoveBatches) -> Figure:
    """Draw some unwanted images, what was claimed in their place, and the difference."""
    changed = (move.claimed.images.double() - move.used.images.double()).flatten(1).abs().amax(dim=1)
    relabelled = _classes(move.claimed.labels) != _classes(move.used.labels)
    places = torch.argsort(changed + relabelled.double(), descending=True, stable=True)[:SHOWN].sort().values
    used, claimed = move.used.images[places].double(), move.claimed.images[places].double()
    rows = [("trained on", used), ("claimed", claimed), ("difference", (claimed - used) / 2 + 0.5)]
    figure = Figure(figsize=(0.85 * len(places) + 1.0, 3.0), layout="constrained")
    grid = figure.subplots(3, len(places), squeeze=False)
    for row, (name, images) in enumerate(rows):
        for column, image in enumerate(images):
            axes = grid[row][column]
            pixels = image.clamp(0, 1).permute(1, 2, 0).numpy()
            axes.imshow(pixels.squeeze(2) if pixels.shape[2] == 1 else pixels, cmap="gray", vmin=0, vmax=1)
            axes.set_xticks([])
            axes.set_yticks([])
            if row < 2:
                labels = (move.used if row == 0 else move.claimed).labels
                axes.set_xlabel(str(int(_classes(labels)[places[column]])), fontsize=7, labelpad=1)
        grid[row][0].set_ylabel(name, fontsize=8, color=INK)
    return figure


def _classes(labels: Tensor) -> Tensor:
    """Return classes, or the largest share of each example."""
    return labels if labels.ndim == 1 else labels.argmax(dim=1)


def causes_figure(moves: Sequence[MoveRow]) -> Figure:
    """Draw errors against the loss of the replaced example, and against how far its replacement is."""
    figure = Figure(figsize=(7.5, 3.0), layout="constrained")
    for axes, (name, words) in zip(figure.subplots(1, 2), CAUSES.items(), strict=True):
        for place, (forgery, own) in enumerate(by_forgery(moves)):
            heights = [move.error for move in own if move.error is not None]
            colour = COLOURS[place % len(COLOURS)]
            axes.plot(
                [getattr(move, name) for move in own],
                heights,
                "o",
                ms=4,
                alpha=0.7,
                color=colour,
                label=wrapped(forgery, 32, 4),
            )
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel(words)
        axes.set_ylabel("l2 error of the update")
        axes.legend(frameon=False, fontsize=7)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    return figure


def roc_figure(moves: Sequence[MoveRow]) -> Figure:
    """Draw for each statistic the share of forged batches found against that of honest ones suspected."""
    claimed = [move for move in moves if move.claimed] or list(moves)
    figure = Figure(figsize=(9.5, 3.0), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(STATISTICS)), STATISTICS, strict=True):
        for place, (forgery, own) in enumerate(by_forgery(claimed)):
            forged, honest = map(np.array, suspected(own, name))
            limits = np.concatenate([[np.inf], np.unique(np.concatenate([forged, honest]))[::-1]])
            found = [(forged >= limit).mean() for limit in limits]
            wrong = [(honest >= limit).mean() for limit in limits]
            axes.plot(
                wrong,
                found,
                color=COLOURS[place % len(COLOURS)],
                label=wrapped(forgery, 32, 4),
                lw=2,
                alpha=0.8,
            )
        axes.plot([0, 1], [0, 1], ":", color="#9aa5b1", lw=1)
        axes.set_title(literal(in_words(name)), fontsize=9, color=INK)
        axes.set_xlabel("honest batches suspected", fontsize=8)
    figure.axes[0].set_ylabel("forged batches found", fontsize=8)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", frameon=False, fontsize=7)
    return figure
