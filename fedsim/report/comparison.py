"""The report of a comparison: which defence stops which attack, at what cost."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import yaml
from matplotlib.figure import Figure
from scipy.stats import t as student
from torch import Tensor

from fedsim.core.errors import printable, shortened
from fedsim.metrics.image_matching import match_to_truth, peak_signal_to_noise
from fedsim.report.figures import curves_figure, heat_figure, rows_figure, scatter_figure
from fedsim.report.page import write_page
from fedsim.storage.comparison import Cell, read_cells
from fedsim.storage.files import csv_text
from fedsim.storage.folder import Storage
from fedsim.storage.runfolder import RunFolder
from fedsim.storage.scores import as_figure
from fedsim.storage.status import Standing, Status

AUDITED = ("detection", "false_rejects", "recomputed")
# Of a defence, whatever attacks it.
COSTS = ("accuracy", "loss", "bytes", "epsilon", "rounds_to_target", "seconds_to_target", "seconds", *AUDITED)
LOWER = ("lpips", "image_error", "embedding_error")  # metrics by which less is a better attack
PICTURES = 8


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A figure over all seeds: its mean, with a 95 % interval where there are two or more."""

    values: tuple[float, ...]
    baseline: float | None = None  # the mean over the same runs; None: it is no score

    @property
    def mean(self) -> float:
        """The mean over runs."""
        return fmean(self.values)

    @property
    def interval(self) -> float | None:
        """Half the width of the 95 % interval of the mean, by Student's t."""
        number = len(self.values)
        if number < 2:
            return None
        return float(student.ppf(0.975, number - 1)) * stdev(self.values) / math.sqrt(number)

    def __str__(self) -> str:
        width = self.interval
        return as_figure(self.mean) + ("" if width is None else f" ± {as_figure(width)}")

    @property
    def blind(self) -> str:
        """The baseline in words."""
        return "" if self.baseline is None else as_figure(self.baseline)


def write_page_of(folder: RunFolder, summary: Mapping[str, Any]) -> Path:
    """Write comparison.csv and report.html over all cells of a comparison."""
    listed = read_cells(folder.storage)
    attacks = list(dict.fromkeys(cell.attack for cell in listed))
    defenses = list(dict.fromkeys(cell.defense for cell in listed))
    runs, trainings = _runs(folder, listed), _trainings(folder, listed)
    cells = {key: _entries(own) for key, own in runs.items()}
    problems, gave_up = dict[tuple[str, str], str](), dict[tuple[str, str], str]()
    for key, own in runs.items():
        for run in own:
            if (standing := run.standing).status is not Status.COMPLETE:
                (gave_up if standing.has_result else problems)[key] = _in_words(standing)
    costs = {defense: _entries(own) for defense, own in trainings.items()}
    metrics = list(dict.fromkeys(name for found in cells.values() for name in found if name not in COSTS))
    _write_csv(folder.storage, cells, problems | gave_up, costs)
    figures: dict[str, Figure] = {}
    for metric in metrics:
        claiming = [a for a in attacks if any(metric in cells[a, defense] for defense in defenses)]
        table = [[_mean(cells[attack, defense].get(metric)) for defense in defenses] for attack in claiming]
        marks = [
            ["×" if (attack, defense) in gave_up else "–" for defense in defenses] for attack in claiming
        ]
        blind = _baseline(metric, cells)
        figures[f"heat_{metric}"] = heat_figure(
            metric, claiming, defenses, table, marks, metric in LOWER, blind
        )
    for metric in (name for name in metrics if not name.endswith("cosine")):
        points = _worst(metric, attacks, defenses, cells, costs)
        if len(points) > 1:
            front = pareto(points, metric in LOWER)
            figures[f"scatter_{metric}"] = scatter_figure(metric, points, front, _baseline(metric, cells))
    curves = {defense: _curve(own) for defense, own in trainings.items()}
    if any(curves.values()):
        figures["accuracy"] = curves_figure("test accuracy", {name: c for name, c in curves.items() if c})
    if pictures := _pictures(attacks, defenses, runs, cells):
        figures["pictures"] = pictures
    return write_page(
        folder.path / "report.html",
        "comparison.html",
        figures,
        title="Which defence stops which attack",
        runs=len({cell.seed for cell in listed}),
        common=" ".join(yaml.safe_load(folder.config_text())["common"]) or "the default federation",
        attacks=attacks,
        knowing=[cell.attack for cell in listed if cell.knows],
        summing=[defense for defense in defenses if "secure_aggregation" in defense],
        defenses=defenses,
        metrics=metrics,
        cells=cells,
        costs=costs,
        cost_names=[name for name in COSTS if any(name in found for found in costs.values())],
        problems=problems,
        gave_up=gave_up,
        csv=(folder.path / "comparison.csv").read_text(encoding="utf-8"),
    )


def _runs(folder: RunFolder, cells: Sequence[Cell]) -> dict[tuple[str, str], list[RunFolder]]:
    """Return the runs of each attack against each defence, one a seed."""
    found: dict[tuple[str, str], list[RunFolder]] = {}
    for cell in cells:
        found.setdefault((cell.attack, cell.defense), []).append(RunFolder(folder.path / cell.folder))
    return found


def _trainings(folder: RunFolder, cells: Sequence[Cell]) -> dict[str, list[RunFolder]]:
    """Return each defence's federations, one a seed."""
    found: dict[str, list[RunFolder]] = {}
    for defense, training in dict.fromkeys((cell.defense, cell.training) for cell in cells):
        found.setdefault(defense, []).append(RunFolder(folder.path / training))
    return found


def pareto(points: dict[str, tuple[float, float]], lower_leaks_more: bool) -> set[str]:
    """Return which (accuracy, leak) points no other one beats in both."""
    sign = -1 if lower_leaks_more else 1

    def beats(one: tuple[float, float], other: tuple[float, float]) -> bool:
        return one != other and one[0] >= other[0] and sign * one[1] <= sign * other[1]

    return {name for name, own in points.items() if not any(beats(other, own) for other in points.values())}


def _entries(runs: list[RunFolder]) -> dict[str, Entry]:
    """Return every metric that complete runs have, over all of them."""
    values, blind = dict[str, list[float]](), dict[str, list[float]]()
    for run in runs:
        if run.status is Status.COMPLETE:
            summary = run.summary()
            for name, value in (summary["metrics"] | {"seconds": summary["seconds"]}).items():
                if value is not None:
                    values.setdefault(name, []).append(value)
            for name, value in summary.get("baseline", {}).items():
                if value is not None:
                    blind.setdefault(name, []).append(value)
    return {
        name: Entry(values=tuple(found), baseline=fmean(blind[name]) if name in blind else None)
        for name, found in values.items()
    }


def _baseline(metric: str, cells: Mapping[tuple[str, str], Mapping[str, Entry]]) -> float | None:
    """Return the best that any cell's guess without a gradient got: below it, nothing leaks."""
    found = [own[metric].baseline for own in cells.values() if metric in own]
    known = [value for value in found if value is not None]
    return (min if metric in LOWER else max)(known, default=None)


def _in_words(standing: Standing) -> str:
    return "did not run" if standing.status is None else shortened(str(standing), 2000)


def _mean(entry: Entry | None) -> float | None:
    return None if entry is None else entry.mean


def _write_csv(
    storage: Storage,
    cells: dict[tuple[str, str], dict[str, Entry]],
    problems: dict[tuple[str, str], str],
    costs: dict[str, dict[str, Entry]],
) -> None:
    lines = [["attack", "defense", "metric", "mean", "interval", "baseline", "runs", "problem"]]
    rows = [(*key, found) for key, found in cells.items()] + [
        ("", name, found) for name, found in costs.items()
    ]
    for attack, defense, found in rows:
        for metric, entry in found.items():
            width = "" if entry.interval is None else repr(entry.interval)
            blind = "" if entry.baseline is None else repr(entry.baseline)
            lines.append(
                [attack, defense, metric, repr(entry.mean), width, blind, str(len(entry.values)), ""]
            )
        if problem := problems.get((attack, defense)):
            lines.append([attack, defense, "", "", "", "", "0", problem])
    text = csv_text([[printable(cell) for cell in line] for line in lines])
    storage.write_text("comparison.csv", text)


def _worst(
    metric: str,
    attacks: list[str],
    defenses: list[str],
    cells: dict[tuple[str, str], dict[str, Entry]],
    costs: dict[str, dict[str, Entry]],
) -> dict[str, tuple[float, float]]:
    """Return for each defence its test accuracy, and the best that any attack got against it."""
    points = dict[str, tuple[float, float]]()
    for defense in defenses:
        found = [cells[a, defense][metric].mean for a in attacks if metric in cells[a, defense]]
        if found and "accuracy" in costs[defense]:
            best = min(found) if metric in LOWER else max(found)
            points[defense] = costs[defense]["accuracy"].mean, best
    return points


def _curve(trainings: Sequence[RunFolder]) -> list[tuple[float, float]]:
    """Return the mean test accuracy over rounds."""
    by_round: dict[int, list[float]] = {}
    for training in trainings:
        for result in training.history() if training.path.exists() else ():
            by_round.setdefault(result.round, []).append(result.accuracy)
    return [(float(round), fmean(values)) for round, values in sorted(by_round.items())]


def _pictures(
    attacks: Sequence[str],
    defenses: Sequence[str],
    runs: Mapping[tuple[str, str], Sequence[RunFolder]],
    cells: Mapping[tuple[str, str], Mapping[str, Entry]],
) -> Figure | None:
    """Draw the first batch, and below it what the best image attack made of it behind each defence."""

    def quality(attack: str) -> float:
        found = [cells[attack, defense].get("psnr") for defense in defenses]
        return max((entry.mean for entry in found if entry is not None), default=-1.0)

    best = max(attacks, key=quality)
    if quality(best) < 0:
        return None
    truth, rows, captions = None, dict[str, list[Tensor]](), dict[str, list[str]]()
    for defense in defenses:
        run = runs[best, defense][0]
        if not run.path.exists() or not (guessed := run.guessed()):
            continue
        guess, true = run.guess(*guessed[0]), run.truth(*guessed[0])
        if guess is None or guess.images is None or true is None:
            continue
        truth = true.images[:PICTURES]
        matched = match_to_truth(guess.images, true.images)[:PICTURES]
        rows[defense] = list(matched)
        captions[defense] = [f"{value:.0f} dB" for value in peak_signal_to_noise(matched, truth).tolist()]
    if truth is None:
        return None
    return rows_figure(best, list(truth), rows, captions)
