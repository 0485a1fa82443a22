"""The part of a run's report on an audit: who was caught, who was wronged, at what cost."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from scipy.stats import binomtest

from fedsim.core.types import Verdict
from fedsim.report.figures import INK, literal

KINDS = {  # what a verdict was worth, and its colour
    "honest, accepted": "#e3f1e5",
    "cheat, rejected": "#3f7cac",
    "honest, rejected": "#e8a33d",
    "cheat, accepted": "#d64545",
}
LABELLED = 100  # clients, and rounds, of which each has a label of its own


@dataclass(frozen=True, kw_only=True)
class Rate:
    """A share of verdicts with its 95 % interval (Wilson)."""

    name: str
    count: int
    total: int

    @property
    def share(self) -> float:
        """The share itself."""
        return self.count / self.total

    @property
    def interval(self) -> tuple[float, float]:
        """The interval of the share."""
        found = binomtest(self.count, self.total).proportion_ci(method="wilson")
        return float(found.low), float(found.high)


def rates(verdicts: Sequence[Verdict], malicious: Mapping[int, str]) -> list[Rate]:
    """Return how many of each cheat were caught, and how many honest clients were rejected."""
    found = list[Rate]()
    for name in ("", *dict.fromkeys(malicious.values())):
        own = [verdict for verdict in verdicts if malicious.get(verdict.client, "") == name]
        if own:
            label = f"{name}, rejected" if name else "honest, rejected"
            found.append(Rate(name=label, count=sum(not verdict.accepted for verdict in own), total=len(own)))
    return found


def reasons(verdicts: Sequence[Verdict], malicious: Mapping[int, str]) -> list[tuple[str, str, int, str]]:
    """Return for each cheat and failed check how often, and the words of the first."""
    counts = Counter((malicious.get(v.client, "honest"), v.check) for v in verdicts if not v.accepted)
    first = {
        (malicious.get(v.client, "honest"), v.check): v.reason for v in reversed(verdicts) if not v.accepted
    }
    return [(cheat, check, number, first[cheat, check]) for (cheat, check), number in counts.items()]


def kind_of(verdict: Verdict, malicious: Mapping[int, str]) -> str:
    """Return what a verdict was worth."""
    who = "cheat" if malicious.get(verdict.client) else "honest"
    return f"{who}, {'accepted' if verdict.accepted else 'rejected'}"


def verdicts_figure(verdicts: Sequence[Verdict], malicious: Mapping[int, str]) -> Figure:
    """Draw every verdict, a row a client and a column a round."""
    clients, rounds = sorted({v.client for v in verdicts}), sorted({v.round for v in verdicts})
    table = np.full((len(clients), len(rounds)), np.nan)
    row, column, worth = ({name: n for n, name in enumerate(names)} for names in (clients, rounds, KINDS))
    for verdict in verdicts:
        table[row[verdict.client], column[verdict.round]] = worth[kind_of(verdict, malicious)]
    size = (min(6.4, 2.8 + 0.25 * len(rounds)), min(8.0, 1.3 + 0.24 * len(clients)))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    axes.imshow(table, cmap=ListedColormap(list(KINDS.values())), vmin=-0.5, vmax=3.5, aspect="auto")
    names = [literal(f"{client} {malicious.get(client, '')}".strip(), 24) for client in clients]
    for axis, labels in ((axes.xaxis, [str(number) for number in rounds]), (axes.yaxis, names)):
        apart = math.ceil(len(labels) / LABELLED)
        axis.set_ticks(range(0, len(labels), apart), labels[::apart], fontsize=7)
        if apart == 1:  # a line between each and the next
            axis.set_ticks(np.arange(-0.5, len(labels)), minor=True)
    axes.grid(which="minor", color="w", lw=1)
    axes.tick_params(which="both", length=0)
    axes.set_xlabel("round", fontsize=8, color=INK)
    handles = [Patch(color=colour, label=name) for name, colour in KINDS.items()]
    figure.legend(handles=handles, loc="outside upper center", ncols=2, fontsize=7, frameon=False)
    return figure


def distances_figure(verdicts: Sequence[Verdict], malicious: Mapping[int, str]) -> Figure | None:
    """Draw how far recomputed checkpoints were from the claimed ones, against the limit, on a log axis."""
    measured = [verdict for verdict in verdicts if verdict.distance is not None and verdict.limit]
    if not measured:
        return None
    limit = measured[0].limit or 1.0
    floor = limit * 1e-4  # a distance of zero has no place on a log axis
    figure = Figure(figsize=(6.4, 3.0), layout="constrained")
    axes = figure.subplots()
    for name in KINDS:
        own = [verdict for verdict in measured if kind_of(verdict, malicious) == name]
        heights = [max(verdict.distance or 0.0, floor) for verdict in own]
        colour = "#7fb685" if name == "honest, accepted" else KINDS[name]
        if own:
            axes.plot([v.round for v in own], heights, "o", ms=5, alpha=0.7, color=colour, label=name)
    axes.axhline(limit, color=INK, lw=1, ls="--")
    axes.text(1.0, limit, " delta", transform=axes.get_yaxis_transform(), va="center", fontsize=8, color=INK)
    axes.set_yscale("log")
    axes.set_ylim(bottom=floor / 3)
    axes.set_xlabel("round")
    axes.set_ylabel(f"distance (at most {floor:.0e}: lowest)", fontsize=8)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False, fontsize=7)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure
