"""The cells of a comparison: what every attack got behind every defense, over all seeds; comparison.csv."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from scipy.stats import t as student

from fedsim.core.errors import printable, shortened
from fedsim.metrics.chance import chance_of_all
from fedsim.metrics.facts import MetricFacts, legend
from fedsim.storage.comparison import Cell
from fedsim.storage.files import csv_text
from fedsim.storage.folder import Storage
from fedsim.storage.runfolder import RunFolder
from fedsim.storage.scores import as_figure
from fedsim.storage.status import Standing, Status

SEEDS = 3  # from so many on there is an interval; fewer: the range
COLUMNS = (
    "attack",
    "defense",
    "metric",
    "mean",
    "interval",
    "lowest",
    "highest",
    "baseline",
    "runs",
    "problem",
)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A figure over all seeds: its mean, with a 95 % interval where there are three or more, or the range."""

    values: tuple[float, ...]
    baseline: float | None = None  # the mean over the same runs; None: it is no score
    chance: float = (
        0.0  # how far from it the mean gets by chance: over batches, or over seeds if that is more
    )

    @property
    def mean(self) -> float:
        """The mean over runs."""
        return fmean(self.values)

    @property
    def interval(self) -> float | None:
        """Half the width of the 95 % interval of the mean, by Student's t; None: too few runs."""
        number = len(self.values)
        if number < SEEDS:
            return None
        return float(student.ppf(0.975, number - 1)) * stdev(self.values) / math.sqrt(number)

    def __str__(self) -> str:
        if (width := self.interval) is not None:
            return f"{as_figure(self.mean)} ± {as_figure(width)}"
        lowest, highest = as_figure(min(self.values)), as_figure(max(self.values))
        return as_figure(self.mean) + (f" ({lowest} to {highest})" if lowest != highest else "")

    def leaks(self, metric: MetricFacts) -> bool:
        """Say whether it is more than a blind guess gets."""
        return self.baseline is not None and metric.better(self.mean, self.baseline, self.chance)

    @property
    def blind(self) -> str:
        """The baseline in words."""
        return "" if self.baseline is None else as_figure(self.baseline)


@dataclass(frozen=True, kw_only=True)
class Grid:
    """All cells of a comparison."""

    attacks: list[str]
    defenses: list[str]
    runs: dict[tuple[str, str], list[RunFolder]]
    trainings: dict[str, list[RunFolder]]
    cells: dict[tuple[str, str], dict[str, Entry]]
    costs: dict[str, dict[str, Entry]]
    problems: dict[tuple[str, str], str]
    gave_up: dict[tuple[str, str], str]
    legend: dict[str, MetricFacts]

    @property
    def metrics(self) -> list[str]:
        """What attacks are scored by."""
        return [name for name, own in self.legend.items() if own.leaks]


def grid_of(folder: RunFolder, listed: Sequence[Cell]) -> Grid:
    """Read the cells of a comparison."""
    runs, trainings = _runs(folder, listed), _trainings(folder, listed)
    attacks = list(dict.fromkeys(cell.attack for cell in listed))
    defenses = list(dict.fromkeys(cell.defense for cell in listed))
    cells = {
        (attack, defense): _entries(runs.get((attack, defense), []))
        for attack in attacks
        for defense in defenses
    }
    costs = {defense: _entries(own) for defense, own in trainings.items()}
    problems, gave_up = dict[tuple[str, str], str](), dict[tuple[str, str], str]()
    for key, own in runs.items():
        for run in own:
            if (standing := run.standing).status is not Status.COMPLETE:
                (gave_up if standing.has_result else problems)[key] = _in_words(standing)
    kept = {
        name: told
        for own in runs.values()
        for run in own
        for name, told in run.summary().get("legend", {}).items()
    }
    names = dict.fromkeys(name for found in (*cells.values(), *costs.values()) for name in found)
    return Grid(
        attacks=attacks,
        defenses=defenses,
        runs=runs,
        trainings=trainings,
        cells=cells,
        costs=costs,
        problems=problems,
        gave_up=gave_up,
        legend=legend(names, kept),
    )


def _runs(folder: RunFolder, cells: Sequence[Cell]) -> dict[tuple[str, str], list[RunFolder]]:
    """Return the runs of each attack against each defense, one a seed."""
    found: dict[tuple[str, str], list[RunFolder]] = {}
    for cell in cells:
        found.setdefault((cell.attack, cell.defense), []).append(RunFolder(folder.path / cell.folder))
    return found


def _trainings(folder: RunFolder, cells: Sequence[Cell]) -> dict[str, list[RunFolder]]:
    """Return each defense's federations, one a seed."""
    found: dict[str, list[RunFolder]] = {}
    for defense, training in dict.fromkeys((cell.defense, cell.training) for cell in cells):
        found.setdefault(defense, []).append(RunFolder(folder.path / training))
    return found


def _entries(runs: list[RunFolder]) -> dict[str, Entry]:
    """Return every metric that complete runs have, over all of them."""
    values = dict[str, list[tuple[float, float | None, float]]]()  # beside its baseline and chance
    for run in runs:
        if run.status is Status.COMPLETE:
            summary = run.summary()
            blind, chances = summary.get("baseline", {}), summary.get("chance", {})
            for name, value in (summary["metrics"] | {"seconds": summary["seconds"]}).items():
                if value is not None:
                    found = (value, blind.get(name), chances.get(name, 0.0))
                    values.setdefault(name, []).append(found)
    return {name: _entry(found) for name, found in values.items()}


def _entry(found: Sequence[tuple[float, float | None, float]]) -> Entry:
    known = [(value, blind) for value, blind, _ in found if blind is not None]
    return Entry(
        values=tuple(value for value, _, _ in found),
        baseline=fmean(blind for _, blind in known) if known else None,
        chance=chance_of_all([value - blind for value, blind in known], [own for _, _, own in found]),
    )


def _in_words(standing: Standing) -> str:
    return "did not run" if standing.status is None else shortened(str(standing), 2000)


def write_csv(storage: Storage, grid: Grid) -> None:
    """Write comparison.csv: every figure of every cell, then of every defense what it costs."""
    problems, lines = grid.problems | grid.gave_up, [list(COLUMNS)]
    rows = [(*key, found) for key, found in grid.cells.items()]
    rows += [("", name, found) for name, found in grid.costs.items()]
    for attack, defense, found in rows:
        for metric, entry in found.items():
            numbers = (entry.mean, entry.interval, min(entry.values), max(entry.values), entry.baseline)
            shown = ["" if number is None else repr(number) for number in numbers]
            lines.append([attack, defense, metric, *shown, str(len(entry.values)), ""])
        if problem := problems.get((attack, defense)):
            lines.append([attack, defense, "", *[""] * 5, "0", problem])
    text = csv_text([[printable(cell) for cell in line] for line in lines])
    storage.write_text("comparison.csv", text)
