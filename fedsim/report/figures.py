"""The report's figures, drawn without a display. Every function returns a matplotlib figure."""

import math
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from fedsim.types import RoundResult

TRUE, GUESSED = "#9aa5b1", "#d64545"
INK = "#323f4b"


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


def label_figure(true: Tensor, guessed: Tensor, title: str, presence_only: bool) -> Figure:
    """Draw true against restored labels: a pair of bars a class, or of most frequent classes if many."""
    figure = Figure(figsize=(4.4, 2.4), layout="constrained")
    axes = figure.subplots()
    classes = list(range(len(true)))
    if len(classes) > 40:  # only classes that are there, or were said to be
        classes = [c for c in classes if true[c] or guessed[c]][:40]
    places = range(len(classes))
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
    axes.set_title(title, fontsize=10, color=INK)
    axes.legend(frameon=False, fontsize=8, loc="upper right", bbox_to_anchor=(1, 1.02), ncols=2)
    axes.set_ylim(top=1.3 * max(1, int(true.max()), int(guessed.max())))
    _clean(axes)
    return figure


def sweep_figure(
    labels: Sequence[str], metrics: Mapping[str, Sequence[float | None]], complete: Sequence[bool]
) -> Figure:
    """Draw one panel a metric, one bar a run."""
    height = 1.1 + 0.28 * len(labels)
    figure = Figure(figsize=(1.6 + 1.7 * len(metrics), height), layout="constrained")
    panels = figure.subplots(1, len(metrics), sharey=True, squeeze=False)[0]
    for axes, (name, values) in zip(panels, metrics.items(), strict=True):
        axes.barh(range(len(labels)), [value or 0 for value in values], color=GUESSED, height=0.6)
        for place, value in enumerate(values):
            if value is None:  # the attack does not claim this
                words = " not claimed" if complete[place] else " failed"
                axes.text(0, place, words, va="center", fontsize=7, color=TRUE)
        axes.set_title(name, fontsize=10, color=INK)
        if name in ("leacc", "lnacc", "irec", "accuracy", "ssim"):
            axes.set_xlim(0, 1)
        _clean(axes)
    panels[0].set_yticks(range(len(labels)), [label[:40] for label in labels], fontsize=8)
    panels[0].invert_yaxis()
    return figure


def _clean(axes: object) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)  # type: ignore[attr-defined]
