"""Attacks in several processes: the same scores, and a process that dies loses nothing that was done."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from fedsim.errors import FedsimError
from fedsim.experiment import run
from fedsim.resume import resume
from fedsim.runfolder import RunFolder

SLOW = ("attack=ig", "attack.optimiser.iterations=30", "metric=[psnr,lnacc]", "federation.rounds=1")


def same(left: RunFolder, right: RunFolder) -> None:
    assert left.scores() == right.scores() != []
    assert left.guessed() == right.guessed()
    for place in left.guessed():
        assert left.guess(*place).images.equal(right.guess(*place).images)


@pytest.mark.slow
def test_two_processes_attack_as_one_does(play_small) -> None:
    same(play_small(*SLOW, folder="one"), play_small(*SLOW, "attackers=2", folder="two"))


@pytest.mark.slow
def test_failures_in_processes_are_said_as_in_one(play_small, tmp_path: Path) -> None:
    refused = ("federation=fedavg", "federation.disclose=[num_examples]")  # no learning rate
    words = []
    for number in ("1", "2"):
        with pytest.raises(FedsimError, match="the attack failed on all") as raised:
            play_small(*refused, f"attackers={number}", folder=number)
        words.append(str(raised.value))
        assert "the attack failed" in (tmp_path / number / "log.txt").read_text()
    assert words[0] == words[1]


@pytest.mark.slow
def test_a_killed_process_is_named_and_resume_goes_on(small, tmp_path: Path) -> None:
    many = (*SLOW, "attack.optimiser.iterations=400", "federation.clients=6")
    whole = run(small(*many), tmp_path / "whole")
    killed = threading.Thread(target=_kill_an_attacker, args=(tmp_path / "killed",))
    killed.start()
    with pytest.raises(FedsimError, match=r"was killed.*Remedy: fewer attackers"):
        run(small(*many, "attackers=2"), tmp_path / "killed")
    killed.join()
    folder = RunFolder(tmp_path / "killed")
    assert folder.guessed()
    assert len(folder.guessed()) < len(whole.guessed())
    same(whole, resume(small(*many), folder))


def _kill_an_attacker(folder: Path) -> None:
    """Kill -9 a spawned process once the first guess is on disk."""
    deadline = time.monotonic() + 120
    while not list(folder.glob("guesses/*")) and time.monotonic() < deadline:
        time.sleep(0.01)
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words, status = (entry / "cmdline").read_text(), (entry / "stat").read_text()
        except OSError:
            continue
        if "spawn_main" in words and status.rsplit(")", 1)[1].split()[1] == str(os.getpid()):
            os.kill(int(entry.name), signal.SIGKILL)
            return
