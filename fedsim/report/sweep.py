"""The report of a sweep: every run in one table, with what differs between them."""

import math
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from fedsim.core.errors import printable, shortened
from fedsim.report.figures import curve_figure, sweep_figure
from fedsim.report.page import link, write_page
from fedsim.storage.files import csv_text
from fedsim.storage.runfolder import RunFolder
from fedsim.storage.status import standing_of

Curves = dict[str, dict[str, list[tuple[float, float]]]]  # metric -> group of runs -> points


def run_folders(folder: Path) -> list[Path]:
    """Return the run folders directly inside a folder, in the order of their numbers."""
    found = [path.parent for path in folder.glob("*/config.yaml")]
    return sorted(found, key=lambda path: (not path.name.split("_")[0].isdecimal(), _number(path), path.name))


def write_page_of(folder: RunFolder, summary: Mapping[str, Any]) -> Path:
    """Write report.html and sweep.csv over all runs of a sweep."""
    runs = [RunFolder(path) for path in run_folders(folder.path)]
    settings = [settings_of(yaml.safe_load(run.config_text())) for run in runs]
    keys = [
        key for key in dict.fromkeys(key for found in settings for key in found) if _differs(key, settings)
    ]
    summaries = [run.summary() for run in runs]
    metrics = list(dict.fromkeys(name for summary in summaries for name in summary.get("metrics", {})))
    rows: list[dict[str, Any]] = [
        {
            "name": printable(run.path.name, keep=""),
            "settings": [printable(str(setting.get(key, ""))) for key in keys],
            "metrics": [summary.get("metrics", {}).get(name) for name in metrics],
            "baselines": [summary.get("baseline", {}).get(name) for name in metrics],
            "status": shortened(printable(str(standing_of(summary))), 2000),
            "link": link(run.path.name, "report.html") if (run.path / "report.html").exists() else "",
        }
        for run, setting, summary in zip(runs, settings, summaries, strict=True)
    ]
    scored = [any(row["baselines"][place] is not None for row in rows) for place in range(len(metrics))]
    names = [[name, f"{name} baseline"] if has else [name] for name, has in zip(metrics, scored, strict=True)]
    lines = [["run", *keys, *chain.from_iterable(names), "status"]]
    for row in rows:
        pairs = zip(row["metrics"], row["baselines"], scored, strict=True)
        numbers = [number for value, blind, has in pairs for number in ((value, blind) if has else (value,))]
        cells = ["" if number is None else str(number) for number in numbers]
        lines.append([row["name"], *row["settings"], *cells, row["status"]])
    folder.storage.write_text("sweep.csv", csv_text(lines))
    by_metric, blind_by_metric = (
        {name: [row[kind][place] for row in rows] for place, name in enumerate(metrics)}
        for kind in ("metrics", "baselines")
    )
    complete = [row["status"] == "complete" for row in rows]
    labels = [", ".join(filter(None, row["settings"])) or row["name"] for row in rows]
    figures = {}
    if curves := _curves(keys, metrics, rows):
        figures["curves"] = curve_figure(*curves)
    elif metrics:
        figures["metrics"] = sweep_figure(labels, by_metric, complete, blind_by_metric)
    return write_page(
        folder.path / "report.html",
        "sweep.html",
        figures,
        title=folder.path.name,
        keys=keys,
        metrics=metrics,
        rows=rows,
        failed=sum(row["status"] != "complete" for row in rows),
    )


def _curves(
    keys: list[str], metrics: list[str], rows: list[dict[str, Any]]
) -> tuple[str, Curves, dict[str, list[tuple[float, float]]]] | None:
    """Return metrics against the first setting that takes three or more numbers, by the other settings.

    And the baselines against the same.
    """
    for place, key in enumerate(keys):
        numbers = {row["settings"][place] for row in rows if _is_number(row["settings"][place])}
        if key != "seed" and len(numbers) >= 3:
            break
    else:
        return None
    curves: Curves = {}
    blind: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        named = dict(zip(keys, row["settings"], strict=True))
        if not _is_number(named[key]):
            continue
        group = ", ".join(value for name, value in named.items() if name not in (key, "seed") and value)
        for metric, value, baseline in zip(metrics, row["metrics"], row["baselines"], strict=True):
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


def settings_of(config: dict[str, Any]) -> dict[str, Any]:
    """Return a config as dotted names, what was chosen first: data, model, attack, defences."""
    chosen = dict(config.pop("choices", {}))  # a run that was never built has none
    for key in ("format", "kind"):
        config.pop(key, None)
    for group in ("defense", "client"):
        chosen[group] = " + ".join(config.get(group) or {}) or "none"
    return chosen | _flat(config)


def _flat(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Turn nested settings into dotted names."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def _differs(key: str, settings: list[dict[str, Any]]) -> bool:
    """Say whether a setting varies among the runs that have it; targets and names repeat the choices."""
    if key == "name" or key.endswith("_target_"):
        return False
    return len({str(setting[key]) for setting in settings if key in setting}) > 1
