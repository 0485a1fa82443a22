"""Damaged run folders: a clear error or the right result, and never a traceback or a silent wrong score."""

import random
import shutil
from pathlib import Path

import pytest
from damages import damage, judged
from faulty_disk import FaultyDisk, PowerCut

import fedsim.lab.record
from fedsim.core.errors import FedsimError
from fedsim.lab.experiment import run
from fedsim.storage.runfolder import RunFolder

RULES = ("federation.rounds=3",)


@pytest.fixture
def interrupted(small, tmp_path: Path, monkeypatch) -> Path:
    """A run that the power cut ended in its last round."""
    with monkeypatch.context() as patch:
        FaultyDisk(patch, tmp_path / "interrupted", 170, PowerCut())
        with pytest.raises(PowerCut):
            run(small(*RULES), tmp_path / "interrupted")
    assert RunFolder(tmp_path / "interrupted").last_round()[0] in (1, 2)
    return tmp_path / "interrupted"


@pytest.mark.parametrize(
    "command", [*(pytest.param(name, marks=pytest.mark.slow) for name in ("replay", "resume")), "report"]
)
def test_damages_are_said_or_do_not_matter(
    play_small, interrupted: Path, tmp_path: Path, monkeypatch, command: str
) -> None:
    """benchmarks/hostile.py damages a thousand folders."""
    whole = play_small(*RULES, folder="whole").path
    if command != "report":
        monkeypatch.setattr(fedsim.lab.record, "write_report", lambda folder, *_: folder.path)  # takes long
    for seed in range(3 if command == "report" else 25):
        copy = tmp_path / f"copy {seed}"
        shutil.copytree(interrupted if command == "resume" else whole, copy)
        how = damage(copy, random.Random(f"{command} {seed}"))
        verdict, outcome = judged(copy, command, whole)
        assert verdict in ("complained", "right"), (seed, how, verdict, outcome)


def test_a_resumed_run_leaves_a_users_files_alone(small, interrupted: Path, tmp_path: Path) -> None:
    from fedsim.lab.resume import resume

    mine = ("background_2024.png", "notes.tmp", "observations/around_7.txt", "guesses/my_round_9.csv")
    for name in mine:
        (interrupted / name).parent.mkdir(exist_ok=True)
        (interrupted / name).write_text(name)
    resume(small(*RULES), RunFolder(interrupted))
    for name in mine:
        assert (interrupted / name).read_text() == name


def test_a_file_that_looks_like_ours_is_named_before_anything_is_attacked(
    play_small, command, tmp_path
) -> None:
    folder = play_small()
    seen = folder.path / "observations"
    shutil.copy(seen / "round_1.client_0.safetensors", seen / "round_1.client_9.safetensors")
    refused = command("replay", "run", "hydra.run.dir=out", cwd=tmp_path)
    assert refused.returncode == 1
    assert "round_1.client_9.safetensors is not in its folder's manifest. Remedy" in refused.stderr
    with pytest.raises(FedsimError, match="not in its folder's manifest"):
        folder.observed()
