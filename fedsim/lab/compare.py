"""Every attack against every defence, with the same seeds, batches and first model."""

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from fedsim.config import build
from fedsim.core import progress
from fedsim.core.errors import FedsimError, in_words
from fedsim.flower.engines.engine import end_children
from fedsim.flower.engines.processes import end_with
from fedsim.lab.experiment import replay, run
from fedsim.lab.record import GaveUp, record_failure
from fedsim.storage.folder import Storage
from fedsim.storage.runfolder import RunFolder


@dataclass(frozen=True, kw_only=True)
class Choice:
    """An attack or a list of defences with settings, as one column or row of the comparison."""

    label: str
    overrides: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Grid:
    """What is compared with what."""

    attacks: tuple[Choice, ...]
    defenses: tuple[Choice, ...]
    seeds: tuple[int, ...]
    common: tuple[str, ...]  # overrides of every run

    def training(self, folder: Path, defense: Choice, seed: int) -> Path:
        """Return where a defence's federation is played."""
        return folder / "trainings" / f"{_as_name(defense.label)}_{seed}"

    def cell(self, folder: Path, attack: Choice, defense: Choice, seed: int) -> Path:
        """Return where an attack on it is kept."""
        return folder / "cells" / f"{_as_name(attack.label)}_against_{_as_name(defense.label)}_{seed}"


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run in a process of its own."""

    path: Path
    overrides: tuple[str, ...]
    source: Path | None = None  # a run whose observations to attack; None: play a federation


def parse(arguments: Sequence[str]) -> tuple[Grid, Path | None, int]:
    """Read `attack=[...] defense=[...] seeds=3 jobs=2 into=DIR KEY=VALUE ...` from the command line."""
    found: dict[str, Any] = {"attack": None, "defense": ["none"], "seeds": 1, "jobs": 2, "into": None}
    found |= _named_comparison(arguments)
    common = list[str]()
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals:
            raise FedsimError(f"compare: expected KEY=VALUE, got {argument!r}. See fedsim --help.")
        if key in found:
            try:
                found[key] = yaml.safe_load(value)
            except yaml.YAMLError as error:
                raise FedsimError(f"compare: {key}: not readable ({error})") from error
        elif key == "keep":
            raise FedsimError("compare: attacks need all that trainings keep. Remedy: leave out keep.")
        elif key in ("seed", "name", "hydra.run.dir"):
            raise FedsimError(f"compare: {key} differs from run to run. Remedy: seeds=N, into=DIR.")
        else:
            common.append(argument)
    if not isinstance(found["attack"], list) or not found["attack"]:
        raise FedsimError("compare: expected attack=[NAME,...], for example attack=[ilrg,span_matching]")
    if not isinstance(found["defense"], list) or not found["defense"]:
        raise FedsimError(
            "compare: expected defense=[NAME,...], for example defense=[none,noise,[clip,noise]]"
        )
    for key in ("seeds", "jobs"):
        if not isinstance(found[key], int) or isinstance(found[key], bool) or found[key] < 1:
            raise FedsimError(f"compare: {key}: expected a whole number of at least 1, got {found[key]!r}")
    grid = Grid(
        attacks=tuple(_attack(entry) for entry in found["attack"]),
        defenses=tuple(_defense(entry) for entry in found["defense"]),
        seeds=tuple(range(found["seeds"])),
        common=tuple(common),
    )
    for kind, choices in (("attack", grid.attacks), ("defense", grid.defenses)):
        labels = [_as_name(choice.label) for choice in choices]  # also of their folders
        if twice := {label for label in labels if labels.count(label) > 1}:
            raise FedsimError(f"compare: {kind}: {min(twice)!r} is there twice")
    return grid, None if found["into"] is None else Path(str(found["into"])), found["jobs"]


def _named_comparison(arguments: Sequence[str]) -> dict[str, Any]:
    """Return what `experiment=NAME` says under `comparison`, if it is among the arguments."""
    named = [argument for argument in arguments if argument.lstrip("+").startswith("experiment=")]
    if not named:
        return {}
    comparison = OmegaConf.to_container(build.compose([*named, "name=check"]).comparison)
    assert isinstance(comparison, dict)
    if not comparison and not any(argument.startswith("attack=") for argument in arguments):
        raise FedsimError(
            f"compare: {named[0]} holds no comparison. Remedy: attack=[...] defense=[...] beside it, or "
            "experiment=defense_leaderboard."
        )
    if unknown := comparison.keys() - {"attack", "defense", "seeds"}:
        raise FedsimError(f"comparison: expected attack, defense and seeds, got {min(unknown, key=str)!r}")
    return {str(key): value for key, value in comparison.items()}


def compare(grid: Grid, folder: Path, jobs: int) -> list[str]:
    """Run what is missing of the grid, many runs at a time; return what failed, in words."""
    crafting = {choice.label: _crafts(grid, choice) for choice in grid.attacks}  # also checks the settings
    for defense in grid.defenses:
        build.experiment(build.compose([*grid.common, "attack=none", *defense.overrides, "name=check"]))
    _claim(folder, grid.common)
    trainings = [
        Job(
            path=grid.training(folder, defense, seed),
            overrides=(*grid.common, *defense.overrides, "attack=none", f"seed={seed}"),
        )
        for defense in grid.defenses
        for seed in grid.seeds
    ]
    # Spawned: a forked process would share the parent's torch threads and random state.
    spawn, parent = get_context("spawn"), (os.getpid(),)
    others = active_children()
    with ProcessPoolExecutor(jobs, mp_context=spawn, initializer=end_with, initargs=parent) as pool:
        try:
            problems = _run_all(trainings, "trainings", pool)
            return problems + _run_all(_cells(grid, folder, crafting), "attacks", pool)
        except BaseException:  # nobody waits for runs that take hours: called again, it goes on
            pool.shutdown(wait=False, cancel_futures=True)
            end_children(others)
            raise


def _cells(grid: Grid, folder: Path, crafting: Mapping[str, bool]) -> list[Job]:
    """Return the attacks on finished trainings, and those that send weights of their own."""
    cells = list[Job]()
    for defense in grid.defenses:
        for seed in grid.seeds:
            source = grid.training(folder, defense, seed)
            for attack in grid.attacks:
                path = grid.cell(folder, attack, defense, seed)
                if crafting[attack.label]:  # it sends weights of its own: nothing to share
                    overrides = (*grid.common, *defense.overrides, *attack.overrides, f"seed={seed}")
                    cells.append(Job(path=path, overrides=overrides))
                elif _is_complete(source):
                    cells.append(Job(path=path, overrides=attack.overrides, source=source))
    return cells


def _claim(folder: Path, common: Sequence[str]) -> None:
    """Note the settings that all runs share, or refuse a folder whose finished runs have others."""
    storage, asked = Storage(folder), json.dumps(sorted(common))
    noted = storage.read_text("settings.json")
    if noted not in (None, asked):
        raise FedsimError(
            f"{folder} holds a comparison with other settings: {noted}. "
            "Remedy: those settings, or another into=DIR."
        )
    if noted is None:
        storage.write_text("settings.json", asked)


def _run_all(all_jobs: Iterable[Job], label: str, pool: ProcessPoolExecutor) -> list[str]:
    """Run the jobs that are not complete; a failed one is named and does not stop the others."""
    missing = [job for job in all_jobs if not _is_complete(job.path)]
    problems = list[str]()
    with progress.bar(label, len(missing)) as advance:
        running = {pool.submit(_run, job): job for job in missing}
        for done, future in enumerate(as_completed(running), start=1):
            try:
                problem = future.result()
            except Exception as error:  # the process died
                problem = in_words(error)
            if problem:
                problems.append(f"{running[future].path.name}: {problem}")
            advance(done)
    return problems


def _run(job: Job) -> str | None:
    """Run one job; return what went wrong."""
    try:
        unfinished = Storage(job.path)
        unfinished.delete(unfinished.names())  # of a run that was broken off
        if job.source is None:
            run(build.experiment(build.compose([*job.overrides, f"name='{job.path.name}'"])), job.path)
        else:
            source = RunFolder(job.source)
            overrides = [*job.overrides, f"name='{job.path.name}'"]
            config, _ = build.compose_replay(source.config_text(), overrides)
            replay(build.experiment(config), source, job.path)
    except GaveUp:
        return None  # a result: the report shows it
    except Exception as error:
        record_failure(RunFolder(job.path), "run", "{}\n", error)
        return in_words(error)
    return None


def _is_complete(path: Path) -> bool:
    try:
        return RunFolder(path).standing.has_result
    except FedsimError:  # damaged, or killed in the middle of a write: it runs again
        return False


def _crafts(grid: Grid, attack: Choice) -> bool:
    return build.experiment(build.compose([*grid.common, *attack.overrides, "name=check"])).attack.crafts()


def _attack(entry: object) -> Choice:
    """Read an attack; `knows_defense` among its settings is the threat model's."""
    name, settings = _named(entry, "attack")
    keys = {key: "threat.knows_defense" if key == "knows_defense" else f"attack.{key}" for key in settings}
    return Choice(
        label=_label(name, settings),
        overrides=(f"attack={name}", *(f"{keys[key]}={value}" for key, value in settings.items())),
    )


def _defense(entry: object) -> Choice:
    parts = [_named(part, "defense") for part in (entry if isinstance(entry, list) else [entry])]
    parts = [part for part in parts if part[0] != "none"]
    if not parts:
        return Choice(label="none", overrides=("defense=[]",))
    chosen = ",".join(name for name, _ in parts)
    settings = [f"defense.{name}.{key}={value}" for name, given in parts for key, value in given.items()]
    label = " + ".join(_label(name, given) for name, given in parts)
    return Choice(label=label, overrides=(f"defense=[{chosen}]", *settings))


def _named(entry: object, kind: str) -> tuple[str, dict[str, Any]]:
    """Read `name` or `{name: {setting: value}}`."""
    if isinstance(entry, str):
        return entry, {}
    if isinstance(entry, dict) and len(entry) == 1:
        ((name, settings),) = entry.items()
        if isinstance(name, str) and isinstance(settings, dict):
            return name, settings
    raise FedsimError(f"compare: {kind}: expected a name or {{name: {{setting: value}}}}, got {entry!r}")


def _label(name: str, settings: dict[str, Any]) -> str:
    words = ", ".join(f"{key} {value}" for key, value in settings.items())
    return f"{name} ({words})" if words else name


def _as_name(label: str) -> str:
    keep: Callable[[str], str] = lambda letter: letter if letter.isalnum() or letter in "._-" else "_"  # noqa: E731
    return "".join(map(keep, label.replace(" ", "")))
