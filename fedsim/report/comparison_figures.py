"""Which figures a comparison gets: leaks, leak against utility, training, a batch behind each defense."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from matplotlib.figure import Figure
from torch import Tensor

from fedsim.metrics.image_matching import match_to_truth, peak_signal_to_noise
from fedsim.report.comparison_grid import Entry, Grid
from fedsim.report.figures import curves_figure, heat_figure, rows_figure, scatter_figure
from fedsim.storage.runfolder import RunFolder

PICTURES = 8


def comparison_figures(grid: Grid) -> dict[str, Figure]:
    """Draw all figures of a comparison."""
    figures, defenses = dict[str, Figure](), grid.defenses
    for metric in grid.metrics:
        claiming = [a for a in grid.attacks if any(metric in grid.cells[a, d] for d in defenses)]
        table = [[_mean(grid.cells[attack, d].get(metric)) for d in defenses] for attack in claiming]
        marks = [["×" if (attack, d) in grid.gave_up else "–" for d in defenses] for attack in claiming]
        facts, blind = grid.legend[metric], baseline_of(metric, grid)
        leaks = [[_leaks(metric, grid, attack, d) for d in defenses] for attack in claiming]
        figures[f"heat_{metric}"] = heat_figure(facts, claiming, defenses, table, marks, blind, leaks)
    for metric in (name for name in grid.metrics if not name.endswith("cosine")):
        points = _worst(metric, grid)
        if len(points) > 1:
            facts = grid.legend[metric]
            front = pareto(points, lower_leaks_more=not facts.highest)
            leaking = [d for d in defenses if any(_leaks(metric, grid, a, d) for a in grid.attacks)]
            blind = baseline_of(metric, grid)
            figures[f"scatter_{metric}"] = scatter_figure(facts, points, front, blind, leaking)
    curves = {defense: _curve(own) for defense, own in grid.trainings.items()}
    if any(curves.values()):
        figures["accuracy"] = curves_figure("test accuracy", {name: c for name, c in curves.items() if c})
    if pictures := _pictures(grid.attacks, defenses, grid.runs, grid.cells):
        figures["pictures"] = pictures
    return figures


def pareto(points: dict[str, tuple[float, float]], lower_leaks_more: bool) -> set[str]:
    """Return which (accuracy, leak) points no other one beats in both."""
    sign = -1 if lower_leaks_more else 1

    def beats(one: tuple[float, float], other: tuple[float, float]) -> bool:
        return one != other and one[0] >= other[0] and sign * one[1] <= sign * other[1]

    return {name for name, own in points.items() if not any(beats(other, own) for other in points.values())}


def baseline_of(metric: str, grid: Grid) -> float | None:
    """Return the best that any cell's guess without a gradient got: below it, nothing leaks."""
    found = [own[metric].baseline for own in grid.cells.values() if metric in own]
    known = [value for value in found if value is not None]
    return (max if grid.legend[metric].highest else min)(known, default=None)


def _leaks(metric: str, grid: Grid, attack: str, defense: str) -> bool:
    """Say whether an attack got more than a blind guess; without a baseline, whatever it got."""
    entry = grid.cells[attack, defense].get(metric)
    return entry is not None and (entry.baseline is None or entry.leaks(grid.legend[metric]))


def _mean(entry: Entry | None) -> float | None:
    return None if entry is None else entry.mean


def _worst(metric: str, grid: Grid) -> dict[str, tuple[float, float]]:
    """Return for each defense its test accuracy, and the best that any attack got against it."""
    points = dict[str, tuple[float, float]]()
    for defense in grid.defenses:
        own = [grid.cells[attack, defense] for attack in grid.attacks]
        found = [entries[metric].mean for entries in own if metric in entries]
        if found and "accuracy" in grid.costs[defense]:
            best = max(found) if grid.legend[metric].highest else min(found)
            points[defense] = grid.costs[defense]["accuracy"].mean, best
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
    """Draw the first batch, and below it what the best image attack made of it behind each defense."""

    def quality(attack: str) -> float:
        found = [cells[attack, defense].get("psnr") for defense in defenses]
        return max((entry.mean for entry in found if entry is not None), default=-1.0)

    best = max(attacks, key=quality)
    if quality(best) < 0:
        return None
    truth, rows, captions = None, dict[str, list[Tensor]](), dict[str, list[str]]()
    for defense in defenses:
        run = runs[best, defense][0] if (best, defense) in runs else None
        if run is None or not run.path.exists() or not (guessed := run.guessed()):
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
