"""The report of a sweep: every run in one table, with what differs between them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml
from matplotlib.figure import Figure as Drawing

from fedsim.core.errors import printable, shortened
from fedsim.metrics.chance import chance_of_all
from fedsim.metrics.facts import MetricFacts, legend
from fedsim.report.answers import Answer, Figure, SweptRun, leading, sweep_answer
from fedsim.report.figures import bars_figure, curve_figure
from fedsim.report.origin import defense_of, origin_of, setting_of
from fedsim.report.page import link, write_page
from fedsim.report.settings import differs, settings_of
from fedsim.storage.files import csv_text
from fedsim.storage.runfolder import RunFolder
from fedsim.storage.status import Status, standing_of

Curves = dict[str, dict[str, list[tuple[float, float]]]]  # metric -> group of runs -> points


def run_folders(folder: Path) -> list[Path]:
    """Return the run folders directly inside a folder, in the order of their numbers."""
    found = [path.parent for path in folder.glob("*/config.yaml")]
    return sorted(found, key=lambda path: (not path.name.split("_")[0].isdecimal(), _number(path), path.name))


@dataclass(frozen=True, kw_only=True)
class SweepRow:
    """One run of a sweep."""

    name: str
    settings: tuple[str, ...]  # that differ
    metrics: tuple[float | None, ...]
    baselines: tuple[float | None, ...]
    chances: tuple[float, ...]
    status: str
    link: str  # empty: it never got as far as a report

    def leaks(self, place: int, metric: MetricFacts) -> bool:
        """Say whether the metric at this place is more than a blind guess gets."""
        value, blind = self.metrics[place], self.baselines[place]
        if value is None or blind is None or not metric.leaks:
            return False
        return metric.better(value, blind, self.chances[place])

    @property
    def is_complete(self) -> bool:
        """Whether it ended as it should."""
        return self.status == Status.COMPLETE

    @property
    def label(self) -> str:
        """What distinguishes it from the others."""
        return ", ".join(filter(None, self.settings)) or self.name


@dataclass(frozen=True, kw_only=True)
class SweepTable:
    """All runs of a sweep, and what differs between them."""

    keys: list[str]
    metrics: list[str]
    rows: list[SweepRow]
    configs: list[dict[str, Any]]
    legend: dict[str, MetricFacts]

    @property
    def failed(self) -> int:
        """How many did not complete."""
        return sum(not row.is_complete for row in self.rows)


def sweep_table(folder: RunFolder) -> SweepTable:
    """Read the runs of a sweep."""
    runs = [RunFolder(path) for path in run_folders(folder.path)]
    configs: list[dict[str, Any]] = [yaml.safe_load(run.config_text()) for run in runs]
    settings = [settings_of(config) for config in configs]
    keys = [
        key for key in dict.fromkeys(key for found in settings for key in found) if differs(key, settings)
    ]
    summaries = [run.summary() for run in runs]
    metrics = list(dict.fromkeys(name for summary in summaries for name in summary.get("metrics", {})))
    kept = {name: own for summary in summaries for name, own in summary.get("legend", {}).items()}
    rows = [
        SweepRow(
            name=printable(run.path.name, keep=""),
            settings=tuple(printable(str(setting.get(key, ""))) for key in keys),
            metrics=tuple(summary.get("metrics", {}).get(name) for name in metrics),
            baselines=tuple(summary.get("baseline", {}).get(name) for name in metrics),
            chances=tuple(summary.get("chance", {}).get(name, 0.0) for name in metrics),
            status=shortened(printable(str(standing_of(summary))), 2000),
            link=link(run.path.name, "report.html") if (run.path / "report.html").exists() else "",
        )
        for run, setting, summary in zip(runs, settings, summaries, strict=True)
    ]
    return SweepTable(keys=keys, metrics=metrics, rows=rows, configs=configs, legend=legend(metrics, kept))


def answer_of(folder: RunFolder, summary: Mapping[str, Any]) -> Answer:
    """Say where most and least leaked."""
    return _answer(sweep_table(folder))


def _answer(table: SweepTable) -> Answer:
    metrics = table.metrics
    scored = [name for name in metrics if table.legend[name].leaks]
    telling = [*leading(scored).values(), *scored]
    number = {
        name: sum(row.metrics[metrics.index(name)] is not None for row in table.rows) for name in scored
    }
    name = max(telling, key=lambda own: number[own], default="accuracy" if "accuracy" in metrics else None)
    runs = list[SweptRun]()
    for row in table.rows:
        figure, value = None, None if name is None else row.metrics[metrics.index(name)]
        if name is not None and value is not None:
            baseline, chance = row.baselines[metrics.index(name)], row.chances[metrics.index(name)]
            figure = Figure(metric=table.legend[name], value=value, baseline=baseline, chance=chance)
        pairs = [pair for pair in zip(table.keys, row.settings, strict=True) if pair[1]]
        named = [f"{key}={said}" for key, said in pairs if key != "seed" or len(pairs) == 1]
        runs.append(SweptRun(label=shortened(", ".join(named) or row.name, 120), figure=figure))
    return sweep_answer(runs, table.failed)


def drawings_of(folder: RunFolder, summary: Mapping[str, Any]) -> dict[str, Drawing]:
    """Draw what the page shows."""
    return _figures(sweep_table(folder))


def write_page_of(folder: RunFolder, summary: Mapping[str, Any]) -> Path:
    """Write report.html and sweep.csv over all runs of a sweep."""
    table = sweep_table(folder)
    _write_csv(folder, table)
    config = yaml.safe_load(folder.config_text())
    return write_page(
        folder.path / "report.html",
        "sweep.html",
        _figures(table),
        title=_title(table.configs),
        answer=_answer(table),
        keys=table.keys,
        metrics=[table.legend[name] for name in table.metrics],
        rows=table.rows,
        failed=table.failed,
        origin=origin_of(folder, summary, config),
    )


def _title(configs: list[dict[str, Any]]) -> str:
    """Name a sweep by its attacks, models, data and defenses."""
    attacks = dict.fromkeys(str((config.get("choices") or {}).get("attack", "")) for config in configs)
    defenses = dict.fromkeys(defense_of(config) or "no defense" for config in configs)
    attack, defense = (
        next(iter(names)) if len(names) == 1 else f"{len(names)} {many}"
        for names, many in ((attacks, "attacks"), (defenses, "defenses"))
    )
    against = " against ".join(filter(None, (attack, setting_of(configs))))
    return f"Sweep: {against}, {defense}" if configs else "Sweep without runs"


def _write_csv(folder: RunFolder, table: SweepTable) -> None:
    scored = [
        any(row.baselines[place] is not None for row in table.rows) for place in range(len(table.metrics))
    ]
    names = [[n, f"{n} baseline"] if has else [n] for n, has in zip(table.metrics, scored, strict=True)]
    lines = [["run", *table.keys, *chain.from_iterable(names), "status"]]
    for row in table.rows:
        pairs = zip(row.metrics, row.baselines, scored, strict=True)
        numbers = [number for value, blind, has in pairs for number in ((value, blind) if has else (value,))]
        cells = ["" if number is None else str(number) for number in numbers]
        lines.append([row.name, *row.settings, *cells, row.status])
    folder.storage.write_text("sweep.csv", csv_text(lines))


def _figures(table: SweepTable) -> dict[str, Drawing]:
    """Draw each metric against a setting, or as bars."""
    if curves := _curves(table.keys, table.metrics, table.rows):
        setting, by_metric, blind = curves
        leaking = _leaking(table, setting)
        return {
            f"curve_{name}": curve_figure(setting, own, groups, blind.get(name, ()), leaking[name])
            for name, groups in by_metric.items()
            if (own := table.legend[name])
        }
    figures, labels = dict[str, Drawing](), [row.label for row in table.rows]
    for place, name in enumerate(table.metrics):
        values = [row.metrics[place] for row in table.rows]
        blind_values = [row.baselines[place] for row in table.rows]
        complete = [row.is_complete for row in table.rows]
        metric, leaks = table.legend[name], [row.leaks(place, table.legend[name]) for row in table.rows]
        figures[f"bars_{name}"] = bars_figure(metric, labels, values, complete, blind_values, leaks)
    return figures


def _leaking(table: SweepTable, setting: str) -> dict[str, list[float]]:
    """Return of each metric at which values of a setting the mean over runs is a leak."""
    found, key = dict[str, list[float]](), table.keys.index(setting)
    for place, name in enumerate(table.metrics):
        runs = dict[float, list[tuple[float, float, float]]]()
        for row in table.rows:
            value, blind = row.metrics[place], row.baselines[place]
            if value is not None and blind is not None and _is_number(row.settings[key]):
                runs.setdefault(float(row.settings[key]), []).append((value, blind, row.chances[place]))
        found[name] = [at for at, own in runs.items() if _stand_out(table.legend[name], own)]
    return found


def _stand_out(metric: MetricFacts, runs: list[tuple[float, float, float]]) -> bool:
    values, blind, chances = zip(*runs, strict=True)
    by_chance = chance_of_all([value - own for value, own, _ in runs], chances)
    return metric.better(fmean(values), fmean(blind), by_chance)


def _curves(
    keys: list[str], metrics: list[str], rows: list[SweepRow]
) -> tuple[str, Curves, dict[str, list[tuple[float, float]]]] | None:
    """Return metrics against the first setting that takes three or more numbers, by the other settings.

    And the baselines against the same.
    """
    for place, key in enumerate(keys):
        numbers = {row.settings[place] for row in rows if _is_number(row.settings[place])}
        if key != "seed" and len(numbers) >= 3:
            break
    else:
        return None
    curves: Curves = {}
    blind: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        named = dict(zip(keys, row.settings, strict=True))
        if not _is_number(named[key]):
            continue
        group = ", ".join(value for name, value in named.items() if name not in (key, "seed") and value)
        for metric, value, baseline in zip(metrics, row.metrics, row.baselines, strict=True):
            if value is not None:
                curves.setdefault(metric, {}).setdefault(group, []).append((float(named[key]), value))
            if baseline is not None:
                blind.setdefault(metric, []).append((float(named[key]), baseline))
    return (key, curves, blind) if curves else None


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _number(path: Path) -> int:
    first = path.name.split("_")[0]
    return int(first) if first.isdecimal() else 0
