"""A run folder at a glance: what it is, how it stands, what it scored. Without torch; never refused."""

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from fedsim.core.errors import FedsimError, in_words, printable, shortened
from fedsim.core.yamls import LOADER, read_yaml
from fedsim.report.settings import settings_of
from fedsim.storage.folder import Storage
from fedsim.storage.heading import CONFIG_FILE, read_config, read_summary
from fedsim.storage.status import standing_of

MANY = ("sweep", "comparison", "game")  # kinds whose folders hold others
OUTSIDE = ("game", "proof", "calibration")  # kinds of trainings outside of a federation
FOREIGN, DAMAGED = "not a run", "damaged"
CHOSEN = ("model", "data", "attack", "defense", "seed")
DEEPEST = 12  # folders within folders that are looked into
_TIMED = re.compile(r"(\d\d)-(\d\d)-(\d\d)(-\d+)?_.*")  # runs/DATE/TIME_NAME, as the config has it
_DATED = re.compile(r"\d{4}-\d\d-\d\d")


@dataclass(frozen=True, kw_only=True)
class Overview:
    """What there is to know of a folder without its tensors."""

    path: Path
    parent: Path | None = None  # the sweep, comparison or sweep of games that it belongs to
    kind: str = ""  # empty: not a run's folder, or damaged
    name: str = ""
    date: str = ""
    status: str = ""
    answer: str = ""  # what its report begins with
    points: tuple[str, ...] = ()  # and what follows, such as one a defense
    problem: str = ""  # why it failed, gave up, or cannot be read
    chosen: Mapping[str, str] = field(default_factory=dict)  # model, data, attack, defense, seed
    settings: Mapping[str, str] = field(default_factory=dict)  # all of them, by dotted names
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    baselines: Mapping[str, float | None] = field(default_factory=dict)
    chances: Mapping[str, float | None] = field(default_factory=dict)  # how far from them by chance

    @property
    def is_run(self) -> bool:
        """Whether it is a run folder that can be read."""
        return bool(self.kind)


def overview(path: Path, parent: Path | None = None) -> Overview:
    """Read a folder; one that cannot be read is described as such."""
    bare = Overview(path=path, parent=parent, name=printable(path.name, keep=""))
    if not (path / CONFIG_FILE).exists():
        return replace(bare, status=FOREIGN, problem="no config.yaml in it")
    try:
        return _read(bare)
    except Exception as error:  # whatever somebody else's folder holds: it is listed, and stops nothing
        return replace(bare, status=DAMAGED, problem=shortened(in_words(error)))


def overviews(root: Path) -> list[Overview]:
    """Read all run folders below one, each before its parts; what else lies there is listed once."""
    found = [one for folder in _folders(root) for one in _below(folder, None, DEEPEST)]
    parts: dict[Path, list[Overview]] = {}
    for one in found:
        if one.parent is not None:
            parts.setdefault(one.parent, []).append(one)
    return [with_choices_of(one, parts[one.path]) if one.path in parts else one for one in found]


def parts_of(run: Overview) -> list[Overview]:
    """Read the runs of a sweep, comparison or sweep of games, in the order of their numbers."""
    found = _below(run.path, run.parent, DEEPEST)[1:]
    return sorted(found, key=lambda one: _numbered(one.path))


def _numbered(path: Path) -> tuple[bool, int, str]:
    number = path.name.partition("_")[0]
    known = number.isascii() and number.isdecimal()
    return not known, int(number[:18]) if known else 0, path.name


def with_choices_of(one: Overview, parts: Sequence[Overview]) -> Overview:
    """Return a sweep, comparison or sweep of games with what its parts chose."""
    attacking = [part for part in parts if part.chosen.get("attack") not in (None, "none")]
    chosen = dict[str, str]()
    for key in CHOSEN:
        values = list(dict.fromkeys(part.chosen[key] for part in attacking or parts if key in part.chosen))
        if values:
            chosen[key] = ", ".join(values[:4]) + (f", {len(values) - 4} more" if len(values) > 4 else "")
    return replace(one, chosen=chosen)


def newest_first(root: Path) -> list[Path]:
    """Return the run folders below one that are no part of another, by date; nothing in them is read."""
    found, left = list[Path](), [(root, DEEPEST)]
    while left:
        folder, depth = left.pop()
        if (folder / CONFIG_FILE).exists():
            found.append(folder)
        elif depth:
            left += [(inner, depth - 1) for inner in _folders(folder)]
    return sorted(found, key=lambda path: (_date(path), path), reverse=True)


def _below(folder: Path, parent: Path | None, depth: int) -> list[Overview]:
    if (folder / CONFIG_FILE).exists():
        own = overview(folder, parent)
        if own.kind not in MANY or not depth:
            return [own]
        parts = [one for inner in _folders(folder) for one in _below(inner, folder, depth - 1)]
        return [own, *(one for one in parts if one.status != FOREIGN)]  # figures/ and batches/ are its own
    found = [one for inner in _folders(folder) for one in _below(inner, parent, depth - 1)] if depth else []
    if any(one.status != FOREIGN for one in found):
        return found
    return [overview(folder, parent)] if found or _has_files(folder) else []


def _folders(folder: Path) -> list[Path]:
    """Return the folders within one, by name; links may lead anywhere and are not followed."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return [folder / name for name in sorted(names) if not name.startswith(".")]


def _has_files(folder: Path) -> bool:
    try:
        return any(folder.iterdir())
    except OSError:
        return True  # not ours to look into


def _read(bare: Overview) -> Overview:
    storage = Storage(bare.path)
    text, kind = read_config(storage)
    config, summary = plain_config(text), read_summary(storage)
    standing = standing_of(summary)
    settings = {} if kind in ("sweep", "comparison") or "games" in config else settings_of(config)
    if kind in OUTSIDE:  # of a federation, which is where the default attack and defenses would be
        settings = {key: value for key, value in settings.items() if key not in ("attack", "defense")}
        settings |= {"attack": " + ".join(config.get("forgery") or {})} if kind == "game" else {}
    shown = {printable(str(key)): shortened(printable(str(value)), 200) for key, value in settings.items()}
    return replace(
        bare,
        kind=kind,
        name=printable(str(summary.get("name") or bare.path.name), keep=""),
        date=_told_date(summary.get("date")) or _date(bare.path),
        status="not finished" if standing.status is None else str(standing.status),
        answer=shortened(printable(str(summary.get("answer") or ""), keep="")),
        points=tuple(shortened(printable(str(p), keep="")) for p in _listed(summary.get("points"))),
        problem=shortened(printable(standing.reason)),
        chosen={key: shown[key] for key in CHOSEN if key in shown},
        settings=shown,
        metrics=_figures(summary.get("metrics")),
        baselines=_figures(summary.get("baseline")),
        chances=_figures(summary.get("chance")),
    )


def plain_config(text: str) -> dict[str, Any]:
    """Read a config.yaml without aliases, which would multiply what it holds."""
    if "*" in text and any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text, Loader=LOADER)):
        raise FedsimError("config.yaml: expected plain values, got an alias")
    config = read_yaml(text)
    if not isinstance(config, dict):
        raise FedsimError("config.yaml: expected the settings of a run, got something else")
    return config


def _figures(found: object) -> dict[str, float | None]:
    """Return figures by name; what is not a finite number is None."""
    named = found.items() if isinstance(found, Mapping) else ()
    return {printable(str(name), keep=""): _finite(value) for name, value in named}


def _listed(found: object) -> list[object]:
    return found if isinstance(found, list) else []


def _finite(value: object) -> float | None:
    try:
        number = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _told_date(date: object) -> str:
    """Return a summary's date by this machine's clock; empty: it has none."""
    try:
        return f"{datetime.fromisoformat(str(date)).astimezone():%Y-%m-%d %H:%M:%S}" if date else ""
    except (ValueError, OverflowError):
        return ""


def _date(path: Path) -> str:
    """Return when a run began: by its folder's name, or by the time of its config."""
    timed = _TIMED.fullmatch(path.name)
    if timed and _DATED.fullmatch(path.parent.name):
        return f"{path.parent.name} {timed[1]}:{timed[2]}:{timed[3]}"
    return f"{datetime.fromtimestamp((path / CONFIG_FILE).stat().st_mtime):%Y-%m-%d %H:%M:%S}"
