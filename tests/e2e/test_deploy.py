"""Flower's deployment engine gives bit for bit what the inline engine gives, and leaves no process behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from engines_alike import ALIKE, same
from omegaconf import OmegaConf

from fedsim.config import build
from fedsim.config.compose import parse_text
from fedsim.core.errors import FedsimError
from fedsim.flower.engines.deploy import Deploy, free_ports
from fedsim.flower.engines.processes import Processes
from fedsim.lab.resume import resume
from fedsim.storage.runfolder import RunFolder
from fedsim.testing import check_engine

TWO = ("federation.clients=2",)


def processes_about(path: Path) -> list[str]:
    """Return the processes whose arguments or environment name a folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:  # gone, or another user's
            continue
        if int(entry.name) != os.getpid() and str(path).encode() in words:
            found.append((entry / "cmdline").read_text().replace("\0", " "))
    return found


@pytest.mark.slow
def test_deploy_and_inline_agree_bit_for_bit_in_a_round_of_one(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("FEDSIM_TEST", str(tmp_path))  # processes inherit it
    check_engine(Deploy(), "federation.clients=1", "federation.rounds=1")
    assert processes_about(tmp_path) == []


@pytest.mark.slow
def test_deploy_and_inline_agree_bit_for_bit_also_after_a_resume(
    play_small, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setenv("FEDSIM_TEST", str(tmp_path))
    inline = play_small(*ALIKE, folder="inline")
    # A round, and the second one in another federation, as after an interruption.
    first = play_small(*ALIKE, "federation.rounds=1", "engine=deploy", folder="deploy")
    config = parse_text(first.config_text())
    config.federation.rounds = 2
    (first.path / "config.yaml").unlink()
    first.begin("run", OmegaConf.to_yaml(config))
    deployed = resume(build.experiment(config), first)
    same(inline, deployed)
    assert deployed.summary()["status"] == "complete"
    assert "round 2: test accuracy" in (deployed.path / "log.txt").read_text()
    assert processes_about(tmp_path) == []


@pytest.mark.slow
def test_a_failing_client_ends_alike_on_deploy(play_small, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("FEDSIM_TEST", str(tmp_path))
    rules = (*TWO, "federation.labels=one_per_class", "federation.batch_size=5", "engine=deploy")
    with pytest.raises(FedsimError, match=r"none of 2 clients.*one_per_class: expected batch_size <= 4"):
        play_small(*rules)
    assert processes_about(tmp_path) == []
    assert len(RunFolder(tmp_path / "run").faults()) == 2
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["reason"].startswith("round 1")


def test_nobody_at_the_address_is_said_in_a_line(play_small, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("FEDSIM_TEST", str(tmp_path))
    (port,) = free_ports(1)
    with pytest.raises(FedsimError, match=r"Flower's run ended before the server did: .*run\.log"):
        play_small(*TWO, "engine=deploy", f"engine.address=127.0.0.1:{port}")
    assert processes_about(tmp_path) == []


def test_a_program_that_dies_is_named_with_its_last_words(tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    try:
        processes.start("superlink", ["flower-superlink", "--no-such-option"], os.environ)
        deadline = time.monotonic() + 60
        while not processes.ended("superlink") and time.monotonic() < deadline:
            time.sleep(0.1)
        with pytest.raises(FedsimError, match=r"superlink ended with status 2: .*no-such-option.*\.log"):
            processes.check()
        processes.check("superlink")
    finally:
        processes.stop()


@pytest.mark.slow
@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_an_interrupted_run(by: signal.Signals, tmp_path: Path) -> None:
    rules = ("data=synthetic", "model=softmax", "federation.clients=1", "engine=deploy", "hydra.run.dir=out")
    process = subprocess.Popen(
        [sys.executable, "-m", "fedsim.commands.cli", *rules],
        cwd=tmp_path,
        env=os.environ | {"FEDSIM_TEST": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored in a shell's background
    )
    try:
        started = tmp_path / "out" / "deploy" / "server.json"
        while process.poll() is None and not started.exists():
            time.sleep(0.1)
        assert len(processes_about(tmp_path)) > 5  # link, node, their executors, run, server
        process.send_signal(by)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    deadline = time.monotonic() + 10
    while (left := processes_about(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert left == []
    assert process.returncode == (130 if by == signal.SIGINT else -signal.SIGKILL), errors


def test_messages_travel_unprotected_only_where_that_is_said(tmp_path: Path) -> None:
    Deploy(address="127.0.0.1:9093")
    Deploy(address="lab:9093", insecure=True)
    with pytest.raises(FedsimError, match=r"expected a certificate.*Remedy: engine\.root_certificates"):
        Deploy(address="lab:9093")
    with pytest.raises(FedsimError, match="no such file"):
        Deploy(address="lab:9093", root_certificates=str(tmp_path / "none.pem")).play(None)  # type: ignore[arg-type]
    with pytest.raises(FedsimError, match="expected HOST:PORT"):
        Deploy(address="lab")
    with pytest.raises(FedsimError, match=r"about engine\.address, got none"):
        Deploy(insecure=True)
