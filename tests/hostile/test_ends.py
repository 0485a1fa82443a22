"""However a run ends, its folder says how, nothing is left behind, and it goes on to the same bits."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from faulty_disk import FaultyDisk, PowerCut
from small_settings import SOFTMAX

import fedsim.lab.experiment
from fedsim.core.errors import FedsimError
from fedsim.lab.compare import comparison_of
from fedsim.lab.experiment import run
from fedsim.lab.resume import resume
from fedsim.storage.folder import Storage
from fedsim.storage.runfolder import RunFolder

FAST = (*SOFTMAX, "metric=[lnacc]")


@pytest.mark.parametrize(
    "end",
    [
        SystemExit(0),
        KeyboardInterrupt(),
        pytest.param(SystemExit(15), marks=pytest.mark.slow),
        pytest.param(GeneratorExit(), marks=pytest.mark.slow),
    ],
)
def test_an_aborted_run_is_not_complete_and_goes_on(
    small, tmp_path: Path, monkeypatch, end: BaseException
) -> None:
    whole = run(small(), tmp_path / "whole")

    def aborted(*_: object) -> None:
        raise end

    with monkeypatch.context() as patch:
        patch.setattr(fedsim.lab.experiment, "assess", aborted)
        with pytest.raises(type(end)):
            run(small(), tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    assert folder.status == "interrupted"
    assert resume(small(), folder).scores() == whole.scores()
    assert folder.status == "complete"


def test_complete_is_the_last_word(small, tmp_path: Path, monkeypatch) -> None:
    """Until all is written, whoever looks is told that the run is running."""
    seen, write = list[tuple[str, str | None]](), Storage.write
    path = tmp_path / "run"

    def noted(storage: Storage, name: str, content: bytes) -> None:
        seen.append((name, RunFolder(path).status))
        write(storage, name, content)

    monkeypatch.setattr(Storage, "write", noted)
    folder = run(small(), path)
    assert seen[0] == ("config.yaml", None)
    assert seen[1] == ("summary.json", None)
    assert {status for _, status in seen[2:]} == {"running"}
    assert seen[-1][0] == "summary.json"
    assert folder.status == "complete"


@pytest.mark.parametrize("rules", [(), ("attack=none",)])
def test_scores_alone_may_be_kept(play_small, rules: tuple[str, ...]) -> None:
    everything, scores = play_small(*rules, folder="all"), play_small(*rules, "keep=scores", folder="scores")
    assert scores.scores() == everything.scores()
    assert scores.summary()["observations"] == everything.summary()["observations"] == 6
    left = {path.name for path in scores.path.iterdir() if path.is_dir() and any(path.iterdir())}
    assert left <= {"figures"}
    assert not list(scores.path.rglob("round_*"))
    assert (scores.path / "report.html").exists()


def test_a_run_that_dies_while_it_removes_what_is_private_ends_as_if_it_had_not(
    small, play_small, tmp_path: Path, monkeypatch
) -> None:
    whole = play_small("keep=scores", folder="whole")
    with monkeypatch.context() as patch:
        removed, delete = 0, os.unlink

        def dies(path, **named):
            nonlocal removed
            removed += "truth" in str(path)
            if removed == 3:
                raise PowerCut
            delete(path, **named)

        patch.setattr(os, "unlink", dies)
        with pytest.raises(PowerCut):
            run(small("keep=scores"), tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    assert folder.status == "running"
    resume(small("keep=scores"), folder)
    assert (folder.scores(), folder.status) == (whole.scores(), "complete")
    assert folder.summary()["metrics"] == whole.summary()["metrics"]
    assert not list(folder.path.rglob("round_*"))


def test_two_comparisons_into_one_folder_do_not_meet(tmp_path: Path, command) -> None:
    comparison = comparison_of(["attack=[ilrg]", f"into={tmp_path}/grid", "jobs=1", *FAST])
    folder = comparison.folder
    refused = []
    with Storage(folder).claimed():
        done = command("compare", "attack=[ilrg]", "into=grid", *FAST, cwd=tmp_path)
        refused.append(done.stderr)
    assert "another process is writing here. Remedy" in refused[0]
    assert not (folder / "trainings").exists()
    with pytest.raises(FedsimError, match="attacks need all that trainings keep"):
        comparison_of(["attack=[ilrg]", "keep=scores"])
    assert (comparison.seeds, comparison.jobs) == ((0,), 1)


def test_a_full_disk_is_said_in_a_sentence(small, tmp_path: Path, monkeypatch) -> None:
    with monkeypatch.context() as patch:
        FaultyDisk(patch, tmp_path / "run", 60, OSError(errno.ENOSPC, "No space left on device"))
        with pytest.raises(
            FedsimError, match=r"cannot be written \(No space left on device\)\. Remedy: room"
        ):
            run(small(), tmp_path / "run")
    assert RunFolder(tmp_path / "run").status == "failed"  # there was room again for that


def started(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    (cwd / "tmp").mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-m", "fedsim", *FAST, "name=test", *arguments],
        cwd=cwd,
        env=dict(os.environ) | {"TMPDIR": str(cwd / "tmp")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_asks_to_end_leaves_a_run_that_goes_on(number: signal.Signals, tmp_path: Path) -> None:
    """benchmarks/hostile.py sends two hundred, to five commands."""
    process = started("federation.rounds=400", "hydra.run.dir=out", cwd=tmp_path)
    folder = RunFolder(tmp_path / "out")
    deadline = time.monotonic() + 120
    while not (tmp_path / "out" / "model.safetensors").exists() or folder.last_round()[0] < 2:
        assert time.monotonic() < deadline
        threading.Event().wait(0.05)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert errors == "fedsim: interrupted; what there was is kept\n"
    assert folder.status == "interrupted"
    assert not list((tmp_path / "tmp").iterdir())


def test_a_disk_that_cannot_be_written_is_said_without_a_traceback(tmp_path: Path) -> None:
    process = started("hydra.run.dir=/proc/nowhere/run", cwd=tmp_path)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "Traceback" not in errors
    assert "Remedy" in errors
