"""Where a page's figures come from: choices, the command that makes them again, date, versions, files."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedsim.core.errors import printable
from fedsim.report.page import link
from fedsim.storage.runfolder import RunFolder

COMMANDS = {
    "run": "fedsim",
    "sweep": "fedsim -m",
    "comparison": "fedsim compare",
    "game": "fedsim forge",
    "proof": "fedsim prove",
    "calibration": "fedsim calibrate",
}
FILES = (
    "scores.csv",
    "history.csv",
    "verdicts.csv",
    "faults.csv",
    "sweep.csv",
    "comparison.csv",
    "cells.csv",
    "forgeries.csv",
    "calibration.csv",
    "training.proof",
    "summary.json",
    "config.yaml",
    "log.txt",
)


@dataclass(frozen=True, kw_only=True)
class Origin:
    """How a page's figures were made."""

    command: str
    facts: Sequence[tuple[str, object]]
    files: Sequence[tuple[str, str]]  # names and addresses


def origin_of(folder: RunFolder, summary: Mapping[str, Any], config: Mapping[str, Any]) -> Origin:
    """Return how a folder's figures were made, as far as it says so."""
    machine, versions = summary.get("machine", {}), summary.get("versions", {})
    threads = machine.get("threads", 1)
    processor = f"{machine.get('processor')}, {machine.get('instructions')} instructions"
    said: list[tuple[str, object]] = [
        ("name", summary.get("name", "")),
        ("date", summary.get("date", "")),
        ("seed", summary.get("seed", config.get("seed", ""))),
        ("time", f"{summary['seconds']} s" if "seconds" in summary else ""),
        ("versions", ", ".join(f"{name} {number}" for name, number in versions.items())),
        ("machine", f"{processor}, {threads} thread{'' if threads == 1 else 's'}" if machine else ""),
    ]
    return Origin(
        command=command_of(folder, summary, config),
        facts=[(words, value) for words, value in said if value != ""],
        files=[(name, link(name)) for name in FILES if folder.storage.has(name)],
    )


def command_of(folder: RunFolder, summary: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """Return the command that does it again; empty: the folder does not say."""
    kind, choices = folder.kind, config.get("choices") or {}
    asked = {
        "sweep": config.get("overrides"),
        "comparison": summary.get("asked"),
        "game": _of_games(config),
    }.get(kind) or choices.get("asked")
    if not isinstance(asked, list):
        return ""
    start = "fedsim leaks" if "chosen" in summary else COMMANDS.get(kind, "")
    if kind == "replay" and (source := folder.source()) is not None:
        start = f"fedsim replay {shlex.quote(str(source))}"
    if kind == "game" and "games" in config:
        start += " -m"
    if kind == "run" and any(str(text).startswith("experiment=") for text in asked):
        start += " kind=run"  # the experiment may be a sweep or a comparison, and this one of its runs
    return printable(f"{start} {shlex.join(map(str, asked))}".strip(), keep="") if start else ""


def _of_games(config: Mapping[str, Any]) -> list[str] | None:
    """Return what several games were asked with: of a key with several values, all of them."""
    values: dict[str, list[str]] = {}
    for game in (config.get("games") or {}).values():
        for text in game.get("choices", {}).get("asked", []):
            key, _, value = str(text).partition("=")
            if value not in values.setdefault(key, []):
                values[key].append(value)
    return [f"{key}={','.join(found)}" for key, found in values.items()] or None


def defense_of(config: Mapping[str, Any]) -> str:
    """Return a run's defenses in order of action; empty: none."""
    return " then ".join(map(str, config.get("defense") or {}))


def setting_of(configs: Iterable[Mapping[str, Any]]) -> str:
    """Return which model was trained on which data: fcn3 on mnist_small; or how many there were."""
    found = dict[str, list[str]](model=[], data=[])
    for config in configs:
        choices = config.get("choices") or {}
        for key, names in found.items():
            if (name := str(choices.get(key, ""))) and name not in names:
                names.append(name)
    models, data = (
        names[0] if len(names) == 1 else f"{len(names)} {many}" if names else ""
        for names, many in ((found["model"], "models"), (found["data"], "data sets"))
    )
    return " on ".join(filter(None, (models, data)))
