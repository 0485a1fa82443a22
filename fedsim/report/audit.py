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
from fedsim.report.figures.style import INK, MANY, NARROW, PAPER, SMALL, clean, literal

KINDS = {  # what a verdict was worth, and its colour: seen on light and on dark, as pixels do not change
    "honest, accepted": "#8fc7a0",
    "cheat, rejected": "#3d86b8",
    "honest, rejected": "#c98a2b",
    "cheat, accepted": "#8a4fc0",
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
    size = (max(NARROW, min(6.4, 2.2 + 0.25 * len(rounds))), min(9.0, 1.3 + 0.26 * len(clients)))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    colours = ListedColormap(list(KINDS.values()))
    axes.imshow(table, cmap=colours, vmin=-0.5, vmax=3.5, aspect="auto", interpolation="none")
    names = [literal(f"{client} {malicious.get(client, '')}".strip(), 24) for client in clients]
    for axis, labels in ((axes.xaxis, [str(number) for number in rounds]), (axes.yaxis, names)):
        apart = math.ceil(len(labels) / LABELLED)
        axis.set_ticks(range(0, len(labels), apart), labels[::apart])
        if apart == 1:  # a line between each and the next
            axis.set_ticks(np.arange(-0.5, len(labels)), minor=True)
    axes.grid(which="minor", color=PAPER, lw=1)
    clean(axes)
    axes.tick_params(which="both", length=0)
    axes.set_xlabel("round")
    handles = [Patch(color=colour, label=name) for name, colour in KINDS.items()]
    figure.legend(handles=handles, loc="outside upper center", ncols=2, fontsize=SMALL, frameon=False)
    return figure


def distances_figure(verdicts: Sequence[Verdict], malicious: Mapping[int, str]) -> Figure | None:
    """Draw how far recomputed checkpoints were from the claimed ones, against the limit, on a log axis."""
    measured = [verdict for verdict in verdicts if verdict.distance is not None and verdict.limit]
    if not measured:
        return None
    limit = measured[0].limit or 1.0
    floor = limit * 1e-4  # a distance of zero has no place on a log axis
    figure = Figure(figsize=(NARROW, 3.2), layout="constrained")
    axes = figure.subplots()
    for name in KINDS:
        own = [verdict for verdict in measured if kind_of(verdict, malicious) == name]
        heights = [max(verdict.distance or 0.0, floor) for verdict in own]
        if own:
            places, many = [v.round for v in own], len(own) > MANY
            axes.plot(places, heights, "o", ms=5, color=KINDS[name], label=name, rasterized=many)
    axes.axhline(limit, color=INK, lw=1, ls="--")
    beside = axes.get_yaxis_transform()
    axes.text(1.0, limit, " delta", transform=beside, va="center", fontsize=SMALL, color=INK)
    axes.set_yscale("log")
    axes.set_ylim(bottom=floor / 3)
    axes.set_xlabel("round")
    axes.set_ylabel(f"distance (at most {floor:.0e}: lowest)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.legend(loc="outside lower left", ncols=2, frameon=False, fontsize=SMALL)
    clean(axes)
    return figure
