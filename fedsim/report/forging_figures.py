"""Figures of forging games: errors, batches, what makes an example hard to replace, ROC curves."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from fedsim.report.figures.style import INK, LINES, MANY, NARROW, SMALL, SOFT, TRUE, clean, titled, wrapped
from fedsim.report.forging_table import CAUSES, by_forgery, in_words, suspected
from fedsim.storage.games import STATISTICS, MoveBatches, MoveRow

SHOWN = 10  # images of a batch in a picture
LOWEST = 1e-19  # where an error of 0 is drawn


def errors_figure(moves: Sequence[MoveRow]) -> Figure:
    """Draw errors of forgeries and of honest recomputation against the step, on a log axis."""
    judged = [move for move in moves if move.judged]
    forgeries = list(dict.fromkeys(move.name for move in judged))
    sizes = sorted({move.unwanted for move in judged})
    names = [wrapped(name, 40, 3) for name in forgeries]
    lines = sum(name.count("\n") + 1 for name in names) + 2 + (len(sizes) if len(sizes) > 1 else 0)
    figure = Figure(figsize=(NARROW, 2.6 + 0.18 * lines), layout="constrained")
    axes = figure.subplots()
    groups: dict[tuple[str, int, bool], list[MoveRow]] = {}
    for move in judged:
        groups.setdefault((move.name, move.unwanted, move.accepted), []).append(move)
    for (name, unwanted, accepted), own in groups.items():
        axes.plot(
            [move.step for move in own],
            [max(move.error or 0.0, LOWEST) for move in own],
            "osD^v"[sizes.index(unwanted) % 5],
            color=LINES[forgeries.index(name) % len(LINES)],
            mfc=None if accepted else "none",
            ms=6,
            alpha=0.8,
            rasterized=len(own) > MANY,
        )
    steps = sorted({move.step for move in judged})
    for column, style in (("benign", ":"), ("delta", "--")):
        heights = [max(max(getattr(m, column) for m in judged if m.step == step), LOWEST) for step in steps]
        label = "honest error" if column == "benign" else "delta"
        axes.plot(steps, heights, style, color=INK, marker="_" if len(steps) == 1 else "", ms=30, label=label)
    for place, shown in enumerate(names):
        axes.plot([], [], "o", color=LINES[place % len(LINES)], label=shown)
    if len(sizes) > 1:
        for place, size in enumerate(sizes):
            axes.plot([], [], "osD^v"[place % 5], color=SOFT, mfc="none", label=f"{size} replaced")
    axes.set_yscale("log")
    axes.set_xlabel("step of the trace")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylabel("l2 error of the update")
    titled(figure, "filled: accepted")
    figure.legend(loc="outside lower left", fontsize=SMALL, frameon=False, markerscale=0.8)
    clean(axes)
    return figure


def pictures_figure(move: MoveBatches) -> Figure:
    """Draw some unwanted images, what was claimed in their place, and the difference."""
    changed = (move.claimed.images.double() - move.used.images.double()).flatten(1).abs().amax(dim=1)
    relabelled = _classes(move.claimed.labels) != _classes(move.used.labels)
    places = torch.argsort(changed + relabelled.double(), descending=True, stable=True)[:SHOWN].sort().values
    used, claimed = move.used.images[places].double(), move.claimed.images[places].double()
    rows = [("trained on", used), ("claimed", claimed), ("difference", (claimed - used) / 2 + 0.5)]
    figure = Figure(figsize=(0.85 * len(places) + 0.6, 3.0), layout="constrained")
    grid = figure.subplots(3, len(places), squeeze=False)
    for row, (name, images) in enumerate(rows):
        for column, image in enumerate(images):
            axes = grid[row][column]
            pixels = image.clamp(0, 1).permute(1, 2, 0).numpy()
            axes.imshow(
                pixels.squeeze(2) if pixels.shape[2] == 1 else pixels,
                cmap="gray",
                vmin=0,
                vmax=1,
                interpolation="none",
            )
            axes.set_xticks([])
            axes.set_yticks([])
            if row < 2:
                labels = (move.used if row == 0 else move.claimed).labels
                axes.set_xlabel(
                    str(int(_classes(labels)[places[column]])), fontsize=SMALL, labelpad=1, color=INK
                )
        grid[row][0].set_ylabel(name, fontsize=SMALL, color=INK)
    return figure


def distances_figure(moves: Sequence[MoveRow]) -> Figure:
    """Draw which share of claims would pass if claimed images had to keep so far from unwanted ones."""
    groups = by_forgery(moves)
    figure, axes = _panel(groups)
    limits = np.linspace(0, max([1.0, *(move.near_l2 or 0.0 for move in moves)]), 200)
    for place, (forgery, own) in enumerate(groups):
        reached = np.array(
            [move.near_l2 if move.accepted and move.near_l2 is not None else -1.0 for move in own]
        )
        shares = [(reached >= limit).mean() for limit in limits]
        axes.plot(
            limits, shares, color=LINES[place % len(LINES)], label=wrapped(forgery, 40, 3), lw=2, alpha=0.8
        )
    axes.set_xlabel("distance asked for (grey levels, rms)")
    axes.set_ylabel("claims accepted")
    axes.set_ylim(-0.03, 1.03)
    return _with_legend(figure, axes)


def reach_figure(batches: Mapping[str, MoveBatches]) -> Figure:
    """Draw how far each image of a batch was moved, the furthest first."""
    figure, axes = _panel([(name, None) for name in batches])
    for place, (name, move) in enumerate(batches.items()):
        gaps = (
            (move.claimed.images.double() - move.used.images.double()).flatten(1).square().mean(dim=1).sqrt()
        )
        heights = 255 * gaps.sort(descending=True).values.numpy()
        axes.plot(heights, color=LINES[place % len(LINES)], label=wrapped(name, 40, 3), lw=2, alpha=0.8)
    axes.set_xlabel("images of a batch, the furthest first")
    axes.set_ylabel("moved (grey levels, rms)")
    return _with_legend(figure, axes)


def _classes(labels: Tensor) -> Tensor:
    """Return classes, or the largest share of each example."""
    return labels if labels.ndim == 1 else labels.argmax(dim=1)


def causes_figures(moves: Sequence[MoveRow]) -> dict[str, Figure]:
    """Draw errors against the loss of the replaced example, and against how far its replacement is."""
    found = dict[str, Figure]()
    for name, words in CAUSES.items():
        groups = by_forgery(moves)
        figure, axes = _panel(groups)
        for place, (forgery, own) in enumerate(groups):
            axes.plot(
                [getattr(move, name) for move in own],
                [move.error for move in own if move.error is not None],
                "o",
                ms=4,
                alpha=0.7,
                color=LINES[place % len(LINES)],
                label=wrapped(forgery, 40, 3),
                rasterized=len(own) > MANY,
            )
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel(words)
        axes.set_ylabel("l2 error of the update")
        found[f"causes_{name}"] = _with_legend(figure, axes)
    return found


def roc_figures(moves: Sequence[MoveRow]) -> dict[str, Figure]:
    """Draw for each statistic the share of forged batches found against that of honest ones suspected."""
    claimed = [move for move in moves if move.claimed] or list(moves)
    found = dict[str, Figure]()
    for name in STATISTICS:
        groups = by_forgery(claimed)
        figure, axes = _panel(groups)
        for place, (forgery, own) in enumerate(groups):
            forged, honest = map(np.array, suspected(own, name))
            limits = np.concatenate([[np.inf], np.unique(np.concatenate([forged, honest]))[::-1]])
            axes.plot(
                [(honest >= limit).mean() for limit in limits],
                [(forged >= limit).mean() for limit in limits],
                color=LINES[place % len(LINES)],
                label=wrapped(forgery, 40, 3),
                lw=2,
                alpha=0.8,
            )
        axes.plot([0, 1], [0, 1], ":", color=TRUE, lw=1)
        titled(figure, in_words(name))
        axes.set_xlabel("honest batches suspected")
        axes.set_ylabel("forged batches found")
        found[f"roc_{name}"] = _with_legend(figure, axes)
    return found


def _panel(groups: Sequence[tuple[str, object]]) -> tuple[Figure, Axes]:
    """Return a panel with room below it for the names of so many groups."""
    lines = sum(wrapped(name, 40, 3).count("\n") + 1 for name, _ in groups)
    figure = Figure(figsize=(NARROW, 2.4 + 0.18 * lines), layout="constrained")
    return figure, figure.subplots()


def _with_legend(figure: Figure, axes: Axes) -> Figure:
    figure.legend(loc="outside lower left", frameon=False, fontsize=SMALL)
    clean(axes)
    return figure
