"""Try attacks on a deployment: behind the defenses in force first, then on every step of a ladder."""

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from fedsim.lab.compare import Choice
from fedsim.lab.grid import RunsFailed, begin_or_go_on, run_missing
from fedsim.lab.leak_audits import Audit
from fedsim.lab.record import recorded
from fedsim.report.comparison import strongest_attacks
from fedsim.storage.comparison import Cell, write_cells
from fedsim.storage.runfolder import RunFolder

SEARCHING = 0.7  # of an attack's share of the time: the rest is for scores and pages


@dataclass(kw_only=True)
class Progress:
    """How far an audit got: cells that were begun, and what was left out."""

    folder: RunFolder
    skipped: list[str]
    cells: list[Cell] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def find_leaks(audit: Audit) -> RunFolder:
    """Try what fits, the defenses in force first; what is done already is not done again."""
    folder = RunFolder(audit.comparison.folder)
    settings = {
        "name": "leaks",
        "common": sorted(audit.comparison.common),
        "seed": audit.comparison.seeds[0],
        "defenses": [list(own.overrides) for own in audit.comparison.defenses],
        "attacks": [list(one.attack.overrides) for one in audit.candidates],
        "source": str(audit.source or ""),
    }
    begin_or_go_on(folder, "comparison", yaml.safe_dump(settings, sort_keys=False))
    progress = Progress(folder=folder, skipped=list(audit.unfit))
    with recorded(folder, folder.path.name, lambda: _summary(audit, progress)):
        _climb(audit, progress)
        if progress.problems:
            raise RunsFailed(progress.problems)
    return folder


def _climb(audit: Audit, progress: Progress) -> None:
    comparison, deadline = audit.comparison, time.monotonic() + audit.seconds
    kinds = {one.attack.label: one.kind for one in audit.candidates}
    first, *others = comparison.defenses
    _behind(audit, first, comparison.attacks, progress, deadline - audit.seconds / 2)
    for defense in others:
        best = kinds.keys() if defense.label == "none" else strongest_attacks(progress.folder, kinds)
        tried = [own for own in comparison.attacks if own.label in best]
        needed, left = _seconds(audit, first, tried), deadline - time.monotonic()
        if not tried:
            progress.skipped.append(f"{defense.label}: nothing leaked that it could stop")
        elif left < needed:
            progress.skipped.append(f"{defense.label}: takes about {needed:.0f} s, {max(left, 0):.0f} s left")
        else:
            _behind(audit, defense, tried, progress, deadline)


def _seconds(audit: Audit, defense: Choice, attacks: Sequence[Choice]) -> float:
    """Return what training and attacks took behind a defense."""
    jobs = [*audit.trainings(defense), *audit.attacks(defense, attacks)]
    return sum(float(RunFolder(job.path).summary().get("seconds", 0)) for job in jobs)


def _behind(
    audit: Audit, defense: Choice, attacks: Sequence[Choice], progress: Progress, deadline: float
) -> None:
    """Train with a defense, then attack it; every attack gets an equal share of the time that is left."""
    seed = audit.comparison.seeds[0]
    progress.cells += [Cell.of(own.label, defense.label, seed, knows=True) for own in attacks]
    write_cells(progress.folder.storage, progress.cells)
    trainings = audit.trainings(defense)
    progress.problems += run_missing(trainings, f"training, {defense.label}", None)
    played = audit.source or trainings[0].path
    batches = max(1, RunFolder(played).count_observations())
    timed = {one.attack.label for one in audit.candidates if one.timed}
    for left, own in zip(range(len(attacks), 0, -1), attacks, strict=True):
        share = max(1.0, (deadline - time.monotonic()) / left)
        limit = f"attack.seconds={max(1, round(SEARCHING * share / batches))}"
        limits = (limit,) if own.label in timed else ()
        for job in audit.attacks(defense, [own]):  # none where the training failed
            limited = dataclasses.replace(job, overrides=(*job.overrides, *limits))
            progress.problems += run_missing([limited], f"{own.label}, {defense.label}", None)


def _summary(audit: Audit, progress: Progress) -> dict[str, Any]:
    """Return what the page needs beside the cells: which attacks were thought of, and what was left out."""
    chosen = [
        {"attack": one.attack.label, "kind": one.kind, "sends": one.sends, "reason": one.reason}
        for one in audit.candidates
    ]
    return {
        "metrics": {},
        "asked": list(audit.comparison.asked),
        "chosen": chosen,
        "skipped": progress.skipped,
        "minutes": round(audit.seconds / 60, 2),
    }
