"""Sweeps by several processes, as jobs of a cluster, and by search."""

import subprocess
from pathlib import Path

import forked
import pytest
import yaml
from small_settings import SOFTMAX

FAST = (*SOFTMAX, "federation.rounds=1")


def sweep(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return forked.fedsim("-m", *FAST, f"hydra.sweep.dir={folder}", *arguments, cwd=folder.parent)


@pytest.mark.slow
def test_runs_of_two_processes_end_in_one_report_and_failed_ones_in_the_exit_status(tmp_path: Path) -> None:
    table = mixed(tmp_path / "sweep", "jobs=2", "attack=ilrg,rgap", "federation.labels=natural,one_per_class")
    assert table.count(",complete") == 1
    assert "gave up: " in table  # a result, as in a comparison
    assert "batch of one" in table
    assert table.count("failed: round 1: none of 4 clients") == 2


@pytest.mark.slow
def test_jobs_of_a_cluster_end_in_one_report_and_failed_ones_in_the_exit_status(tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    cluster = "hydra/launcher=submitit_local"
    table = mixed(tmp_path / "sweep", cluster, "attack=ilrg", "federation.labels=natural,one_per_class")
    assert table.count(",complete") == 1
    assert table.count("failed: round 1: none of 4 clients") == 1


def mixed(folder: Path, *arguments: str) -> str:
    """Play runs of which some fail; return their table."""
    done = sweep(folder, *arguments)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == str(folder), done.stderr
    return (folder / "sweep.csv").read_text()


@pytest.mark.slow
def test_a_search_minimises_its_objective(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    noise = ("defense=[noise]", "defense.noise.sigma=tag(log, interval(1e-4, 1))", "objective=irec")
    done = sweep(tmp_path / "search", "hydra/sweeper=search", "hydra.sweeper.n_trials=3", *noise)
    assert done.returncode == 0, done.stderr
    best = yaml.safe_load((tmp_path / "search" / "optimization_results.yaml").read_text())
    found = (tmp_path / "search" / "sweep.csv").read_text().splitlines()
    column = found[0].split(",").index("irec")
    assert best["best_value"] == pytest.approx(min(float(row.split(",")[column]) for row in found[1:]))


def test_an_unknown_objective_is_refused_by_name(tmp_path: Path) -> None:
    done = forked.fedsim(*FAST, "objective=lnac", f"hydra.run.dir={tmp_path}/run", cwd=tmp_path)
    assert done.returncode == 1
    assert "objective=lnac: expected one of leacc, lnacc" in done.stderr
