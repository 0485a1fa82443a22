"""The forging game on the command line, and forgers inside of rounds."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from fedsim import build
from fedsim.errors import FedsimError
from fedsim.forge import play
from fedsim.report.forging import refutation
from fedsim.runfolder import read_tensors

SMALL = (
    "data=synthetic",
    "data.shape=[1,7,7]",
    "data.num_classes=4",
    "data.train_size=300",
    "data.test_size=40",
    "model=softmax",
    "proof.steps=6",
    "proof.batch_size=40",
    "proof.learning_rate=0.01",
)


def fedsim(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fedsim", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def moves(*overrides: str):
    config = build.compose([*SMALL, "audit=proof_of_learning", "name=test", *overrides])
    return list(play(build.forging_game(config, Path("nowhere"), "")))


def test_a_game_ends_with_a_table_a_page_and_the_batches(tmp_path: Path) -> None:
    forgeries = "forgery=[greedy,nearest,perturbation,box,parallelogram]"
    done = fedsim("forge", *SMALL, forgeries, "forge.fractions=[0,1]", "hydra.run.dir=game", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "game"
    assert done.stdout.splitlines()[-1] == str(folder)
    assert "parallelogram (planned)" in done.stdout
    with (folder / "forgeries.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 5 * 2 * 5
    for row in rows:
        won = row["forgery"] == "parallelogram"
        assert (row["accepted"] == "True") == won, row
        assert row["check"] == {"greedy": "step", "nearest": "step"}.get(
            row["forgery"], "" if won else "domain"
        )
    stored, _ = read_tensors(folder / "batches" / "box.safetensors")
    assert stored["used"].shape == stored["claimed"].shape == (40, 1, 7, 7)
    page = (folder / "report.html").read_text()
    for words in (
        "10 of 50 claims were accepted",
        "Could a verifier see it?",
        "hard to replace",
        "images trained on",
    ):
        assert words in page
    assert (folder / "forge.yaml").is_file()
    again = fedsim("forge", *SMALL, "hydra.run.dir=game", cwd=tmp_path)
    assert again.returncode == 1
    assert "holds a game already" in again.stderr


def test_a_sweep_of_games_is_one_table(tmp_path: Path) -> None:
    world = ("data=tiny", "model=softmax", "proof.steps=3", "forgery=[brute_force]", "forge.challenges=2")
    done = fedsim("forge", "-m", *world, "proof.batch_size=1,2", "hydra.run.dir=game", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with (tmp_path / "game" / "forgeries.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["game"] for row in rows] == ["proof.batch_size=1"] * 2 + ["proof.batch_size=2"] * 2
    assert rows[2]["reason"] == "none of the other 1,127 batches has this gradient"
    assert {(row["accepted"], row["check"]) for row in rows} == {("False", "forgery")}
    wrong = fedsim("forge", *world, "proof.batch_size=1,2", cwd=tmp_path)
    assert "Remedy: fedsim forge -m" in wrong.stderr


def test_the_same_batches_are_forged_at_every_stage_and_games_repeat() -> None:
    rules = ("forgery=[greedy]", "forge.at=[0,5]", "forge.batches=2", "forge.fractions=[0]")
    one, other = moves(*rules), moves(*rules)
    assert [(move.step, move.number) for move in one] == [(0, 0), (0, 1), (5, 0), (5, 1)]
    assert (one[0].used.images == one[2].used.images).all()
    assert [move.verdict for move in one] == [move.verdict for move in other]
    assert all(move.unwanted == move.gone == 1 and move.loss > 0 and move.moved > 0 for move in one)


def test_a_trace_can_be_claimed_never_to_have_used_an_example() -> None:
    found = moves("forgery=[parallelogram,nearest]", "forge.examples=[7,8]", "proof.steps=14")
    steps = sorted({move.step for move in found})
    assert len(steps) >= 2  # in each of two epochs
    assert all(move.gone == move.unwanted for move in found)
    words = refutation(found, [7, 8])
    assert f"nearest: examples [7, 8] denied in 0 of {len(steps)} steps: the claim fails" in words
    assert f"denied in {len(steps)} of {len(steps)} steps: the whole trace passes without them" in words


@pytest.mark.parametrize("precision", ["float64", "bfloat16", "float16"])
def test_games_in_other_precisions(precision: str) -> None:
    (planned, searched) = moves(
        "forgery=[parallelogram,greedy]", "forge.challenges=1", f"forge.precision={precision}"
    )
    assert planned.verdict is not None
    assert searched.verdict is not None
    if precision == "float64":
        assert planned.verdict.error < 1e-16
        assert planned.verdict.benign < 1e-16
        assert planned.accepted
    else:
        assert searched.verdict.benign > 1e-6  # coarse arithmetic leaves more room
    assert searched.verdict.error > searched.verdict.benign


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["forgery=[]"], r"forgery: expected at least one\. Remedy"),
        (["forgery=[nonsense]"], "Could not load 'forgery/nonsense'"),
        (["forgery=[greedy]", "forge.at=[9]"], "forge.at: expected steps below proof.steps=6, got 9"),
        (["forgery=[greedy]", "forge.at=[-1]"], "forge.at: expected null or a list of steps"),
        (["forgery=[greedy]", "forge.examples=[]"], "forge.examples: expected null or a list of indices"),
        (["forgery=[greedy]", "forge.examples=[1]", "forge.at=[1]"], "forge.examples: the steps.*Remedy"),
        (["forgery=[greedy]", "forge.examples=[1]", "proof.steps=1", "seed=3"], "was used in 1 steps"),
        (["forgery=[greedy]", "forge.fractions=[2]"], r"forge.fractions: expected a list of shares"),
        (["forgery=[greedy]", "forge.batches=0"], "forge.batches: expected null or a whole number"),
        (["forgery=[greedy]", "forge.precision=int8"], "forge.precision: expected one of float32"),
        (["forgery=[greedy]", "forge.delta=0"], "forge.delta: expected null or a positive number"),
        (["forgery=[greedy]", "forge.challenges=0"], "forge.challenges: expected a whole number"),
        (["forgery=[greedy]", "forgery.greedy.candidates=0"], "forgery.candidates: expected at least 1"),
        (["forgery=[box]", "forgery.box.size=2"], "forgery.size: expected a share"),
        (["forgery=[greedy]", "audit=none"], "audit=none proves nothing"),
        (["forgery=[greedy]", "audit.domain=oval"], "audit.domain: expected one of uint8, box, real"),
    ],
)
def test_wrong_settings_of_a_game_are_refused(settings: list[str], words: str) -> None:
    with pytest.raises(FedsimError, match=words):
        moves(*settings)


def test_a_forgery_that_gives_up_is_a_move_that_lost() -> None:
    (move,) = moves("model=mlp", "model.width=60", "forgery=[perturbation]", "forge.challenges=1")
    assert move.verdict is None
    assert not move.accepted
    assert "leave no freedom" in move.reason


@pytest.mark.parametrize(
    ("forgery", "caught"), [("greedy.Greedy", 1.0), ("parallelogram.Parallelogram", 0.0)]
)
def test_forgers_in_rounds_claim_other_data(play_small, forgery: str, caught: float) -> None:
    played = play_small(
        "federation=fedavg",
        "federation.local_steps=3",
        "audit=proof_of_learning",
        "attack=none",
        "client=[forger]",
        "client.forger.share=0.34",
        f"client.forger.forgery._target_=attacks.integrity.forging.{forgery}",
    )
    (cheater,) = played.cheats()
    assert played.summary()["metrics"]["detection"] == caught
    for verdict in played.verdicts():
        assert verdict.accepted == (verdict.client != cheater or caught == 0)
