"""A sweep: one run for every combination of listed values, and one report over all."""

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fedsim.config import build
from fedsim.config.catalog import config_dir
from fedsim.config.compose import (
    combinations,
    compose,
    composed,
    key,
    parsed,
    plain,
    quoted,
    search_override,
    unvaried,
)
from fedsim.core.errors import FedsimError, printable
from fedsim.lab.experiment import run
from fedsim.lab.grid import Job, RunJob, RunsFailed, attempt, begin_or_go_on, pool_of, run_missing
from fedsim.lab.record import recorded
from fedsim.storage.runfolder import RunFolder

ELSEWHERE = ("hydra/launcher", "hydra/sweeper")  # a cluster, or a search: Hydra's plug-ins
PASSING = ("jobs", "hydra.sweep.dir", "hydra.sweep.subdir")  # that leave the runs as they are


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """What is swept, where, by how many processes at once."""

    overrides: tuple[str, ...]
    folder: RunFolder
    processes: int
    jobs: tuple[Job, ...] | None  # None: a launcher or sweeper of Hydra's makes the runs


def sweep_of(overrides: Sequence[str]) -> Sweep:
    """Read `KEY=A,B ...`, and what an experiment wants to be swept."""
    elsewhere = any(key(override) in ELSEWHERE for override in parsed(overrides))
    first = composed(unvaried(overrides) if elsewhere else combinations(overrides, {})[0][1])
    folder, jobs = RunFolder(first.sweep_folder.resolve()), None
    if not elsewhere:
        listed = combinations(overrides, first.swept)
        names = (f"{number}_{_name(own)}" for number, (_, own) in enumerate(listed))
        jobs = tuple(
            RunJob(path=folder.path / name, overrides=tuple(own))
            for name, (_, own) in zip(names, listed, strict=True)
        )
    return Sweep(overrides=tuple(overrides), folder=folder, processes=first.config.jobs, jobs=jobs)


def sweep(chosen: Sweep, ended: Callable[[Job], None] = lambda job: None) -> RunFolder:
    """Run what is missing of a sweep; failed runs are a RunsFailed when the others have ended."""
    kept = [str(o.input_line) for o in parsed(chosen.overrides) if key(o) not in PASSING]
    text = yaml.safe_dump({"name": "sweep", "overrides": kept}, sort_keys=False)
    begin_or_go_on(chosen.folder, "sweep", text)
    with recorded(chosen.folder, chosen.folder.path.name, lambda: {"metrics": {}}):
        if chosen.jobs is None:
            problems = _sweep_elsewhere(chosen)
        else:
            with pool_of(chosen.processes) as pool:
                problems = run_missing(chosen.jobs, "runs", pool, ended)
        if problems:
            raise RunsFailed(problems)
    return chosen.folder


def _name(overrides: Sequence[str]) -> str:
    """Return what a run is called; a setting that cannot be is reported by the run itself."""
    try:
        return re.sub(r"[^\w.=-]+", "_", str(compose(overrides).name))[:100]
    except FedsimError:
        return "run"


def _sweep_elsewhere(chosen: Sweep) -> list[str]:
    """Let Hydra's launcher start the runs, or its sweeper choose them; return what failed."""
    import hydra

    place = f"hydra.sweep.dir={quoted(str(chosen.folder.path))}"
    before, sys.argv = sys.argv, ["fedsim", "--multirun", *search_override(), *chosen.overrides, place]
    try:
        hydra.main(config_path=str(config_dir()), config_name="config", version_base="1.3")(_play)()
    finally:
        sys.argv = before
    runs = [RunFolder(path.parent) for path in sorted(chosen.folder.path.glob("*/config.yaml"))]
    if not runs:
        return ["no run was made, and nobody said why"]
    return [f"{run.path.name}: {run.standing}" for run in runs if not run.standing.has_result]


def _play(config: Any) -> float | None:
    """Play one run where a launcher wants it; return what a searching sweeper looks at."""
    from hydra.core.hydra_config import HydraConfig

    path, objective = Path(HydraConfig.get().runtime.output_dir), config.objective
    if "optuna" in str(HydraConfig.get().sweeper.get("_target_")) and not objective:
        raise FedsimError("hydra/sweeper=search needs to know what to look at. Remedy: objective=lnacc.")
    if problem := attempt(path, "run", lambda: plain(config), lambda own: run(build.experiment(own), path)):
        print(printable(f"fedsim: {path.name}: {problem}"), file=sys.stderr)
        return None
    return objective_of(RunFolder(path), objective)


def objective_of(folder: RunFolder, name: str | None) -> float | None:
    """Return the metric that a searching sweeper asked for."""
    metrics = folder.summary()["metrics"]
    if name is not None and metrics.get(name) is None:
        raise FedsimError(f"objective={name}: expected one of {', '.join(metrics)}")
    return None if name is None else float(metrics[name])
