"""A sweep: one run for every combination of listed values, and one report over all."""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from fedsim.config import build
from fedsim.config.catalog import config_dir
from fedsim.config.compose import (
    Composed,
    as_text,
    combinations,
    compose,
    composed,
    key,
    parsed,
    plain,
    search_override,
    unvaried,
)
from fedsim.core.errors import FedsimError, in_words
from fedsim.lab.experiment import run
from fedsim.lab.grid import Job, begin_or_go_on, pool_of, run_missing
from fedsim.lab.record import GaveUp, record_failure, recorded
from fedsim.storage.runfolder import RunFolder

ELSEWHERE = ("hydra/launcher", "hydra/sweeper")  # a cluster, or a search: Hydra's plug-ins


def sweep(
    overrides: Sequence[str], ended: Callable[[Job], None] = lambda job: None
) -> tuple[RunFolder, list[str]]:
    """Run what is missing of a sweep; return its folder, and what failed in words."""
    if any(key(override) in ELSEWHERE for override in parsed(overrides)):
        return _sweep_elsewhere(overrides, composed(unvaried(overrides)))
    first = composed(combinations(overrides, {})[0][1])
    folder = RunFolder(first.sweep_folder)
    jobs = [
        Job(path=folder.path / f"{number}_{_name(own)}", overrides=tuple(own))
        for number, (_, own) in enumerate(combinations(overrides, first.swept))
    ]
    with _recorded_sweep(folder, overrides), pool_of(first.config.jobs) as pool:
        return folder, run_missing(jobs, "runs", pool, ended)


@contextmanager
def _recorded_sweep(folder: RunFolder, overrides: Sequence[str]) -> Iterator[None]:
    kept = [text for text in overrides if not text.startswith("hydra.sweep")]
    begin_or_go_on(folder, "sweep", yaml.safe_dump({"name": "sweep", "overrides": kept}, sort_keys=False))
    with recorded(folder, folder.path.name, lambda: {"metrics": {}}):
        yield


def _name(overrides: Sequence[str]) -> str:
    """Return what a run is called; a setting that cannot be is reported by the run itself."""
    try:
        return re.sub(r"[^\w.=-]+", "_", str(compose(overrides).name))[:100]
    except FedsimError:
        return "run"


def _sweep_elsewhere(overrides: Sequence[str], first: Composed) -> tuple[RunFolder, list[str]]:
    """Let Hydra's launcher start the runs, or its sweeper choose them."""
    import hydra

    folder = RunFolder(first.sweep_folder)
    own = [*search_override(), *overrides, f"hydra.sweep.dir='{folder.path}'"]
    before, sys.argv = sys.argv, ["fedsim", "--multirun", *own]
    try:
        with _recorded_sweep(folder, overrides):
            hydra.main(config_path=str(config_dir()), config_name="config", version_base="1.3")(_play)()
    finally:
        sys.argv = before
    problems = list[str]()
    for path in sorted(folder.path.glob("*/config.yaml")):
        standing = RunFolder(path.parent).standing
        if not standing.has_result:
            problems.append(f"{path.parent.name}: {standing}")
    return folder, problems


def _play(config: Any) -> float | None:
    """Play one run where a launcher wants it; return what a searching sweeper looks at."""
    from hydra.core.hydra_config import HydraConfig

    path, objective = RunFolder(Path(HydraConfig.get().runtime.output_dir)), config.objective
    if "optuna" in str(HydraConfig.get().sweeper.get("_target_")) and not objective:
        raise FedsimError("hydra/sweeper=search needs to know what to look at. Remedy: objective=lnacc.")
    try:
        return objective_of(run(build.experiment(plain(config)), path.path), objective)
    except GaveUp:
        return None
    except Exception as error:
        record_failure(path, "run", as_text(config), error)
        print(f"fedsim: {path.path.name}: {in_words(error)}", file=sys.stderr)
        return None


def objective_of(folder: RunFolder, name: str | None) -> float | None:
    """Return the metric that a searching sweeper asked for."""
    metrics = folder.summary()["metrics"]
    if name is not None and metrics.get(name) is None:
        raise FedsimError(f"objective={name}: expected one of {', '.join(metrics)}")
    return None if name is None else float(metrics[name])
