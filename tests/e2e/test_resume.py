"""Runs that die in the middle go on where they were, and end as if nothing had happened."""

import csv
import errno
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import forked
import pytest
from faulty_disk import FaultyDisk, PowerCut
from small_settings import SOFTMAX

import fedsim.lab.record
from fedsim.commands.resume import command as resume_command
from fedsim.config import build
from fedsim.config.compose import compose
from fedsim.core.errors import FedsimError
from fedsim.lab.experiment import run
from fedsim.lab.resume import resume
from fedsim.storage.runfolder import RunFolder

SMALL = (*SOFTMAX, "data.train_size=200", "federation.clients=4")
STATEFUL = ("defense=[sparsify]", "defense.sparsify.error_feedback=true", "federation.participation=0.67")
CHEATED = (
    "federation=fedavg",
    "audit=proof_of_learning",
    "attack=none",
    "client=[replay]",
    "client.replay.share=0.34",
)


def figures(folder: RunFolder) -> tuple[object, ...]:
    verdicts = [(v.round, v.client, v.accepted, v.check, v.distance) for v in folder.verdicts()]
    return folder.scores(), folder.history(), verdicts, folder.summary()["metrics"], sorted(folder.guessed())


@pytest.mark.parametrize(
    ("settings", "writes"),
    [((), 9), (STATEFUL, 3), (CHEATED, 3)],
    ids=["plain", "error_feedback", "audited"],
)
def test_a_run_that_dies_at_any_write_is_resumed_to_the_same_figures(
    small, tmp_path: Path, monkeypatch, settings: tuple[str, ...], writes: int
) -> None:
    """benchmarks/hostile.py goes through every single one."""
    monkeypatch.setattr(fedsim.lab.record, "write_report", lambda *_: None)  # takes most of the time
    overrides = (*settings, "federation.rounds=3")
    with monkeypatch.context() as patch:
        disk = FaultyDisk(patch, tmp_path / "whole", 10**9, PowerCut())  # counts
        whole = run(small(*overrides), tmp_path / "whole")
    errors = (PowerCut(), OSError(errno.ENOSPC, "No space left on device"), OSError(errno.EIO, "I/O error"))
    for number in range(writes):
        moment = 8 + int((disk.calls - 8) * (number + 0.5) / writes)  # config.yaml is there after the first 7
        path, error = tmp_path / f"dies_{number}", errors[number % 3]
        with monkeypatch.context() as patch:
            FaultyDisk(patch, path, moment, error)
            with pytest.raises((PowerCut, FedsimError)):
                run(small(*overrides), path)
        assert RunFolder(path).status != "complete"
        again = resume(small(*overrides), RunFolder(path))
        assert figures(again) == figures(whole)
        assert tensors(again) == tensors(whole)
        assert not any((path / ".partial").iterdir())


def tensors(folder: RunFolder) -> list[str]:
    """All files of tensors but clients' memories, of which only the last two are kept."""
    found = (str(path.relative_to(folder.path)) for path in folder.path.rglob("*.safetensors"))
    return sorted(name for name in found if not name.startswith("clients"))


@pytest.mark.slow
def test_kill_minus_nine_in_a_real_process(tmp_path: Path) -> None:
    settings = [*SMALL, "metric=[lnacc]", "federation.rounds=20", "name=test"]
    whole = run(build.experiment(compose(settings)), tmp_path / "whole")
    killed = tmp_path / "killed"
    process = subprocess.Popen(
        [sys.executable, "-m", "fedsim", *settings, f"hydra.run.dir={killed}"], stdout=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 120
    while not (killed / "observations" / "round_7.sent.safetensors").exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert RunFolder(killed).status == "running"
    done = forked.fedsim("resume", str(killed), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str(killed)
    assert figures(RunFolder(killed)) == figures(whole)
    with (killed / "history.csv").open() as file:
        assert [int(row["round"]) for row in csv.DictReader(file)] == list(range(21))


def test_a_guess_that_was_cut_short_is_made_again(small, tmp_path: Path) -> None:
    folder = run(small(), tmp_path / "run")
    guess = folder.guess(1, 0)
    assert guess is not None
    folder.keep_guess(1, 0, guess, partial=True)
    assert folder.guess(1, 0, whole=True) is None
    assert folder.guess(1, 1, whole=True) is not None
    before = figures(folder)
    assert figures(resume(small(), folder)) == before


def test_what_cannot_be_resumed_is_said(tmp_path: Path) -> None:
    with pytest.raises(FedsimError, match="not a run folder"):
        resume_command.main([str(tmp_path)], standalone_mode=False)
    with pytest.raises(FedsimError, match="expected a run folder alone"):
        resume_command.main([str(tmp_path), "seed=1"], standalone_mode=False)


def test_a_replay_goes_on_with_what_it_has_and_trains_nobody(play_small, command, tmp_path: Path) -> None:
    play_small("attack=none", folder="base")
    attack = ("attack=ilrg", "metric=[lnacc]")
    for name in ("whole", "cut"):
        command("replay", "base", *attack, f"hydra.run.dir={name}", cwd=tmp_path)
    whole, cut = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "cut")
    cut.write_summary({"status": "interrupted"})
    (cut.path / "scores.csv").unlink()
    gone = cut.path / "guesses" / "round_2.client_1.safetensors"
    kept = cut.path / "guesses" / "round_1.client_1.safetensors"
    gone.unlink()
    stamp = kept.stat().st_mtime_ns
    assert command("resume", "cut", cwd=tmp_path).returncode == 0
    assert cut.scores() == whole.scores() != []
    assert gone.exists()
    assert kept.stat().st_mtime_ns == stamp
    assert not (cut.path / "observations").exists()
    assert not (cut.path / "model.safetensors").exists()


def test_a_run_that_is_being_written_is_left_alone(play_small, command, tmp_path: Path) -> None:
    folder = play_small(folder="run")
    folder.write_summary({"status": "interrupted"})
    with folder.claimed():
        refused = command("resume", "run", cwd=tmp_path)
    assert refused.returncode == 1
    assert "another process is writing here. Remedy" in refused.stderr
    assert folder.summary() == {"status": "interrupted"}
    assert command("resume", "run", cwd=tmp_path).returncode == 0


def test_a_server_that_ends_early_is_no_complete_run(small, tmp_path: Path, monkeypatch) -> None:
    from fedsim.flower.engines.inline import Inline

    whole = Inline.play

    def stopped(self, apps):
        whole(self, replace(apps, server=lambda grid, context: None))

    monkeypatch.setattr(Inline, "play", stopped)
    with pytest.raises(FedsimError, match=r"ended after round 0 of 2 without a word\. Remedy: fedsim resume"):
        run(small(), tmp_path / "run")
    assert RunFolder(tmp_path / "run").summary()["status"].startswith("failed")
