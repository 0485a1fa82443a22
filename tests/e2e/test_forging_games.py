"""The forging game on the command line, and forgers inside of rounds."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from small_settings import DATA

from fedsim.config import build_central
from fedsim.config.compose import as_text, compose
from fedsim.core.challenges import Challenge
from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Forgery
from fedsim.core.training import Batch
from fedsim.integrity.forge import play
from fedsim.integrity.games import play_game
from fedsim.report.forging_table import correlations, refutation
from fedsim.storage.folder import Storage
from fedsim.storage.games import adopt_moves
from fedsim.storage.games import moves as stored_moves
from fedsim.storage.runfolder import RunFolder
from fedsim.storage.status import Status
from fedsim.storage.tensors import read_tensors

SMALL = (
    *DATA,
    "data.shape=[1,7,7]",
    "data.train_size=300",
    "model=softmax",
    "proof.steps=6",
    "proof.batch_size=40",
    "proof.learning_rate=0.01",
)


def moves(*overrides: str):
    config = compose([*SMALL, "audit=proof_of_learning", "name=test", *overrides])
    return list(play(build_central.forging_game(config)))


def rows(*overrides: str):
    return [move.row for move in moves(*overrides)]


def test_a_game_ends_with_a_table_a_page_and_the_batches(tmp_path: Path, command) -> None:
    forgeries = "forgery=[greedy,nearest,perturbation,box,parallelogram]"
    done = command(
        "forge", *SMALL, forgeries, "forge.fractions=[0.001,1]", "hydra.run.dir=game", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "game"
    assert done.stdout.splitlines()[-1] == str(folder)
    assert "parallelogram (planned)" in done.stdout
    with (folder / "forgeries.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 5 * 2 * 5
    for row in lines:
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
    played = RunFolder(folder)
    assert (played.kind, played.status) == ("game", Status.COMPLETE)
    assert played.summary()["metrics"]["accepted"] == 0.2
    again = command("forge", *SMALL, "hydra.run.dir=game", cwd=tmp_path)
    assert again.returncode == 1
    assert "already holds a run" in again.stderr
    (folder / "report.html").unlink()
    written = command("report", "game", cwd=tmp_path)
    assert written.returncode == 0, written.stderr
    assert (folder / "report.html").read_text() == page  # pictures and all, from the folder alone
    assert "expected a run or a replay, got a game" in command("resume", "game", cwd=tmp_path).stderr


def test_a_sweep_of_games_is_one_table(tmp_path: Path, command) -> None:
    world = (
        "data=tiny",
        "model=softmax",
        "proof.steps=3",
        "forgery=[brute_force]",
        "forge.challenges=2",
        "forge.fractions=[0]",
    )
    sweep = ("forge", "-m", *world, "proof.batch_size=1,2", "hydra.run.dir=game")
    done = command(*sweep, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str(tmp_path / "game")
    with (tmp_path / "game" / "forgeries.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [row["game"] for row in lines] == ["proof.batch_size=1"] * 2 + ["proof.batch_size=2"] * 2
    assert lines[2]["reason"] == "none of the other 1,127 batches has this gradient"
    assert {(row["accepted"], row["check"]) for row in lines} == {("False", "forgery")}
    config = yaml.safe_load((tmp_path / "game" / "config.yaml").read_text())
    assert config["games"]["proof.batch_size=2"]["proof"]["batch_size"] == 2
    wrong = command("forge", *world, "proof.batch_size=1,2", cwd=tmp_path)
    assert "Remedy: fedsim forge -m" in wrong.stderr
    played, lost = stored_moves(Storage(tmp_path / "game")), tmp_path / "game/games/1_proof.batch_size=2"
    kept = (tmp_path / "game/games/0_proof.batch_size=1/summary.json").stat().st_mtime_ns
    (lost / "summary.json").unlink()  # called again, what is missing is played
    again = command(*sweep, "jobs=1", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert stored_moves(Storage(tmp_path / "game")) == played
    assert (tmp_path / "game/games/0_proof.batch_size=1/summary.json").stat().st_mtime_ns == kept
    other = command(*sweep, "seed=1", cwd=tmp_path)
    assert "holds a game with other settings" in other.stderr


def test_a_game_that_fails_leaves_the_others_their_moves(tmp_path: Path, command) -> None:
    at = ("forgery=[greedy]", "forge.at=[4]", "proof.steps=5,3", "hydra.run.dir=game")
    done = command("forge", "-m", *SMALL, *at, cwd=tmp_path)
    assert done.returncode == 1
    assert "1_proof.steps=3: forge.at: expected steps below proof.steps=3, got 4" in done.stderr
    folder = RunFolder(tmp_path / "game")
    assert [row.game for row in stored_moves(folder.storage)] == ["proof.steps=5"]
    assert folder.status is Status.FAILED
    assert "1 claims were accepted" in (folder.path / "report.html").read_text()


@pytest.mark.slow
def test_games_of_two_processes_are_those_of_one_in_their_order(tmp_path: Path, command) -> None:
    # The second is over first.
    games = ("forgery=[greedy]", "proof.steps=6,1", "forge.challenges=6", "forge.fractions=[0.001]")
    for jobs in (1, 2):
        done = command(
            "forge", "-m", *SMALL, *games, f"jobs={jobs}", f"hydra.run.dir=by_{jobs}", cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr
    one, two = (RunFolder(tmp_path / f"by_{jobs}") for jobs in (1, 2))
    assert stored_moves(one.storage) == stored_moves(two.storage)
    labels = list(dict.fromkeys(row.game for row in stored_moves(two.storage)))
    assert labels == ["proof.steps=6", "proof.steps=1"]
    assert one.config_text() == two.config_text()
    assert one.storage.names("batches/") == two.storage.names("batches/")


def test_the_same_batches_are_forged_at_every_stage_and_games_repeat() -> None:
    rules = ("forgery=[greedy]", "forge.at=[0,5]", "forge.batches=2", "forge.fractions=[0.001]")
    one, other = moves(*rules), moves(*rules)
    assert [(move.row.step, move.row.batch) for move in one] == [(0, 0), (0, 1), (5, 0), (5, 1)]
    assert (one[0].used.images == one[2].used.images).all()
    found = [move.row for move in one]
    assert found == [move.row for move in other]
    assert all(row.unwanted == row.gone == 1 and row.loss > 0 and row.moved > 0 for row in found)


def test_a_trace_can_be_claimed_never_to_have_used_an_example() -> None:
    rules = ("forgery=[one_level,parallelogram,nearest]", "forge.examples=[7,8]", "proof.steps=14")
    found = rows(*rules, "forge.delta=1e-4")  # a careless verifier
    steps = len({move.step for move in found})
    assert steps >= 2  # in each of two epochs
    words = refutation(found, [7, 8]).splitlines()
    assert words[0] == f"nearest: examples [7, 8] denied in 0 of {steps} steps: the claim fails"
    passed = f"denied in {steps} of {steps} steps: the whole trace passes without them"
    assert words[1] == f"one_level: examples [7, 8] {passed}"
    assert "denied in 0 of" in words[2]  # what was planned beforehand is not what is on record
    assert {move.reason for move in found if move.forgery == "parallelogram"} == {
        "a batch that was planned is not the one on record"
    }


class Vandal(Forgery):
    """Spoils whatever it is given, and claims anything."""

    def forge(self, challenge: Challenge) -> Batch:
        challenge.model.normalize.mean.fill_(1e20)
        challenge.batch.images.zero_()
        return challenge.examples(challenge.owned[: len(challenge.batch.labels)])


class Broken(Forgery):
    """Has a fault."""

    def forge(self, challenge: Challenge) -> Batch:
        raise ZeroDivisionError("oh")


def test_nothing_of_the_adversarys_is_the_verifiers_and_faults_cost_a_move_alone() -> None:
    config = compose([*SMALL, "audit=proof_of_learning", "forgery=[greedy]", "name=test"])
    game = replace(build_central.forging_game(config), forgeries={"vandal": Vandal(), "broken": Broken()})
    found = [move.row for move in play(game)]
    assert {(move.forgery, move.accepted) for move in found} == {("vandal", False), ("broken", False)}
    assert {move.check for move in found if move.judged} == {"step"}
    assert {move.reason for move in found if move.forgery == "broken"} == {"ZeroDivisionError: oh"}


class Interrupted(Broken):
    """Is stopped by Ctrl-C in its second move."""

    moves = 0

    def forge(self, challenge: Challenge) -> Batch:
        self.moves += 1
        if self.moves == 2:
            raise KeyboardInterrupt
        return Vandal().forge(challenge)


def test_an_interrupted_game_keeps_its_moves_and_their_page(tmp_path: Path) -> None:
    config = compose([*SMALL, "audit=proof_of_learning", "forgery=[greedy]", "name=test"])
    game = replace(
        build_central.forging_game(config), forgeries={"vandal": Vandal(), "stopped": Interrupted()}
    )
    folder = RunFolder(tmp_path / "game")
    with pytest.raises(KeyboardInterrupt):
        play_game(game, folder, name="test", config_text=as_text(config))
    assert folder.status is Status.INTERRUPTED
    assert [row.forgery for row in stored_moves(folder.storage)] == ["vandal", "stopped", "vandal"]
    page = (folder.path / "report.html").read_text()
    assert "0 of 3 claims were accepted" in page
    assert "interrupted" in page
    assert "images trained on, claimed, and their difference, stopped" in page


def test_games_are_not_thrown_together(tmp_path: Path) -> None:
    rules = ("forgery=[greedy]", "forge.at=[0,5]", "forge.batches=6", "forge.fractions=[0.001]")
    game = build_central.forging_game(compose([*SMALL, "audit=proof_of_learning", "name=test", *rules]))
    paths = [tmp_path / "games" / name for name in ("one", "two")]
    for path, own in zip(paths, (game, replace(game, name="two")), strict=True):
        play_game(own, RunFolder(path), name="test", config_text="")
    together = Storage(tmp_path)
    adopt_moves(together, paths)
    found = correlations(stored_moves(together))
    assert [name for name, *_ in found] == ["greedy", "greedy", "greedy, two", "greedy, two"]
    assert found[0][2] == found[2][2]
    assert (tmp_path / "batches" / "greedy_two.safetensors").is_file()


@pytest.mark.kernels
@pytest.mark.parametrize("precision", ["float64", "bfloat16", "float16"])
def test_games_in_other_precisions(precision: str) -> None:
    (planned, searched) = rows(
        "forgery=[parallelogram,greedy]", "forge.challenges=1", f"forge.precision={precision}"
    )
    if precision == "float64":
        assert planned.error < 1e-16
        assert planned.benign < 1e-16
        assert planned.accepted
    else:
        # Coarse arithmetic leaves more room: gradients of quarters are rounded each, on any CPU.
        assert searched.benign > 1e-6
    assert searched.error > searched.benign


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["forgery=[]"], r"forgery: expected at least one\. Remedy"),
        (["forgery=[nonsense]"], "forgery=nonsense: no such yaml"),
        (["forgery=[greedy]", "forge.at=[9]"], "forge.at: expected steps below proof.steps=6, got 9"),
        (["forgery=[greedy]", "forge.at=[-1]"], "forge.at: expected null or a list of steps"),
        (["forgery=[greedy]", "forge.examples=[]"], "forge.examples: expected null or a list of indices"),
        (["forgery=[greedy]", "forge.examples=[1]", "forge.at=[1]"], "forge.examples: the steps.*Remedy"),
        (["forgery=[greedy]", "forge.examples=[1]", "proof.steps=1", "seed=3"], "was used in 1 steps"),
        (["forgery=[greedy]", "forge.fractions=[2]"], r"forge.fractions: expected a list of shares"),
        (["forgery=[greedy]", "forge.batches=0"], "forge.batches: expected null or a whole number"),
        (
            ["forgery=[greedy]", "forge.batches=9", "forge.at=[0]"],
            "forge.batches: expected at most proof.steps=6",
        ),
        (
            ["forgery=[lattice]", "forgery.lattice.strength=1"],
            "forgery.strength: expected null or a whole number of at least 2",
        ),
        (["forgery=[greedy]", "forge.precision=int8"], "forge.precision: expected one of float32"),
        (["forgery=[greedy]", "forge.delta=-1"], "forge.delta: expected null or a number of at least 0"),
        (["forgery=[greedy]", "forge.challenges=0"], "forge.challenges: expected a whole number"),
        (
            ["forgery=[greedy]", "forgery.greedy.candidates=0"],
            "forgery.candidates: expected a whole number of at least 1",
        ),
        (["forgery=[box]", "forgery.box.size=2"], "forgery.size: expected a share"),
        (["forgery=[greedy]", "audit=none"], "audit=none proves nothing"),
        (["forgery=[greedy]", "audit.domain=oval"], "audit.domain: expected one of uint8, box, real"),
    ],
)
def test_wrong_settings_of_a_game_are_refused(settings: list[str], words: str) -> None:
    with pytest.raises(FedsimError, match=words):
        moves(*settings)


def test_a_forgery_that_gives_up_is_a_move_that_lost() -> None:
    (move,) = rows("model=mlp", "model.width=60", "forgery=[perturbation]", "forge.challenges=1")
    assert (move.check, move.error, move.judged) == ("forgery", None, False)
    assert not move.accepted
    assert "leave no freedom" in move.reason


@pytest.mark.parametrize(
    ("forgery", "audit", "caught"),
    [
        ("greedy.Greedy", "proof_of_learning_paper", 1.0),
        ("parallelogram.Parallelogram", "proof_of_learning_paper", 0.0),
        ("parallelogram.Parallelogram", "proof_of_learning", 1.0),  # which knows the data before the round
    ],
)
def test_forgers_in_rounds_claim_other_data(play_small, forgery: str, audit: str, caught: float) -> None:
    played = play_small(
        "federation=fedavg",
        "federation.local_steps=3",
        f"audit={audit}",
        "attack=none",
        "client=[forger]",
        "client.forger.share=0.34",
        f"client.forger.forgery._target_=fedsim.attacks.integrity.forging.{forgery}",
    )
    (cheater,) = played.malicious()
    assert played.summary()["metrics"]["detection"] == caught
    for verdict in played.verdicts():
        assert verdict.accepted == (verdict.client != cheater or caught == 0)
