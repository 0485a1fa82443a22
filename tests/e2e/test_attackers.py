"""Attacks in several processes: the same scores, the same words, and none that outlives the run."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedsim.config import build
from fedsim.core.errors import FedsimError
from fedsim.storage.runfolder import RunFolder

SLOW = ("attack=ig", "attack.optimiser.iterations=30", "metric=[psnr,lnacc]", "federation.rounds=1")


def same(left: RunFolder, right: RunFolder) -> None:
    assert left.scores() == right.scores() != []
    assert left.guessed() == right.guessed()
    for place in left.guessed():
        assert left.guess(*place).images.equal(right.guess(*place).images)


def test_another_process_builds_the_experiment_again_and_once(small) -> None:
    experiment = small("attack=bias_corrected", "federation.rounds=1")
    # A module's own function and a text: all that has to travel to a process.
    assert (experiment.rebuild.func, experiment.rebuild.args) == (build.rebuilt, (experiment.config_text,))
    rebuilt = experiment.rebuild()
    assert rebuilt.config_text == experiment.config_text
    assert type(rebuilt.attack) is type(experiment.attack)
    assert experiment.rebuild() is rebuilt  # with every errand


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
@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_attacker_outlives_the_run_and_ctrl_c_keeps_what_they_have(by, tmp_path: Path) -> None:
    rules = [*SLOW, "attack.optimiser.iterations=1000000", "data=synthetic", "data.shape=[1,8,8]"]
    program = [sys.executable, "-m", "fedsim", *rules, "model=softmax", "attackers=2", "hydra.run.dir=out"]
    (temporary := tmp_path / "tmp").mkdir()
    process = subprocess.Popen(
        program,
        cwd=tmp_path,
        env=dict(os.environ) | {"TMPDIR": str(temporary)},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    log, deadline = tmp_path / "out" / "log.txt", time.monotonic() + 120
    while not (log.exists() and log.read_text().count("attacking round 1") == 2):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    begun = {child: _seconds(child) for child in _attackers(process.pid)}
    while any(_seconds(child) < before + 1 for child, before in begun.items()):  # of CPU: others work, too
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.killpg(process.pid, by) if by == signal.SIGINT else process.send_signal(by)
    _, errors = process.communicate(timeout=60)
    while time.monotonic() < deadline and (
        any(temporary.iterdir()) or any(Path("/proc", str(child)).exists() for child in begun)
    ):
        time.sleep(0.1)
    assert not list(temporary.iterdir())
    assert len(begun) == 2
    assert not any(Path("/proc", str(child)).exists() for child in begun)
    folder = RunFolder(tmp_path / "out")
    if by != signal.SIGKILL:
        assert process.returncode == 128 + by, errors
        assert "Traceback" not in errors
        assert len(folder.guessed()) == 2
        assert {row.client for row in folder.scores() if row.metric == "psnr"} == {0, 1}


def _attackers(parent: int) -> list[int]:
    """Return the processes that a run has started to attack."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words, status = (entry / "cmdline").read_text(), (entry / "stat").read_text()
        except OSError:
            continue
        if "spawn_main" in words and status.rsplit(")", 1)[1].split()[1] == str(parent):
            found.append(int(entry.name))
    return found


def _seconds(process: int) -> float:
    """Return how much CPU time a process has used."""
    user, system = Path("/proc", str(process), "stat").read_text().rsplit(")", 1)[1].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
