"""How a forging game chooses its challenges, what it writes down, and the files of keys and proofs."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from small_training import DATA, TRAINING, by_hand, fresh
from torch import Tensor
from torch.nn import functional

from fedsim.config import build_central
from fedsim.config.compose import compose
from fedsim.core.challenges import Challenge
from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Forgery
from fedsim.core.randomness import generator
from fedsim.core.training import Batch, load_weights, weights_of
from fedsim.core.types import Weights
from fedsim.defenses.integrity.proof.proof import from_bytes
from fedsim.defenses.integrity.proof.proof_of_learning import ProofOfLearning
from fedsim.defenses.integrity.proof.seal import unseal
from fedsim.integrity import forge
from fedsim.integrity.binding import bound, commitment_to
from fedsim.integrity.forge import Game, Rules, _challenge, _places, play
from fedsim.integrity.games import summarise
from fedsim.integrity.judge import RecordedStep, judge_step
from fedsim.integrity.keys import make_keys, nonce_of, prover_keys, verifier_keys
from fedsim.integrity.prove import prove
from fedsim.integrity.training import (
    central_indices,
)
from fedsim.integrity.verify import read_proof, verify_file
from fedsim.storage.runfolder import RunFolder


def equal(one: Weights, other: Weights) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def game(**rules: object) -> Game:
    return Game(
        name="", training=TRAINING, domain="uint8", forgeries={}, reference=DATA.test, rules=Rules(**rules)
    )


def places(**rules: object) -> list[tuple[int, int]]:
    return _places(game(**rules), [central_indices(TRAINING, step) for step in range(7)])


def test_challenges_are_drawn_named_or_those_of_an_example() -> None:
    drawn = places(challenges=4)
    assert len(set(drawn)) == 4
    assert drawn == sorted(drawn)
    assert all(step == number for step, number in drawn)
    assert places(at=(6, 2, 6)) == [(6, 6), (2, 2)]
    assert places(at=(6,), batches=2) == [(6, 0), (6, 1)]
    assert len(places(at=(0,), batches=7)) == 7
    for rules, words in (
        ({"at": (7,)}, "below proof.steps=7, got 7"),
        ({"at": (0,), "batches": 8}, "at most proof.steps=7, got 8"),
        ({"examples": (99,)}, "was used in 7 steps"),
    ):
        with pytest.raises(FedsimError, match=words):
            places(**rules)
    used = [step for step in range(7) if 3 in central_indices(TRAINING, step).tolist()]
    assert places(examples=(3,)) == [(step, step) for step in used]


def challenge(fraction: float, own: Tensor, **rules: object):
    return _challenge(game(**rules), by_hand(steps=2)[2], own, 2, 2, fraction, "greedy")


@pytest.mark.parametrize(("fraction", "number"), [(0, 0), (0.01, 1), (0.5, 4), (1.0, 8)])
def test_a_fraction_of_the_batch_must_go(fraction: float, number: int) -> None:
    own = central_indices(TRAINING, 2)
    made = challenge(fraction, own)
    assert len(made.unwanted) == number
    assert made.unwanted.tolist() == sorted(set(made.unwanted.tolist()))
    assert sorted([*made.owned.tolist(), *own.tolist()]) == list(range(24))
    assert torch.equal(made.batch.images, DATA.train.batch(own))
    assert equal(weights_of(made.model), by_hand(steps=2)[2])
    exact = challenge(fraction, own, precision="float64")
    assert exact.batch.images.dtype == torch.float64
    assert next(exact.model.parameters()).dtype == torch.float64


def test_examples_that_are_named_must_go_and_are_at_nobodys_hand() -> None:
    own = central_indices(TRAINING, 2)
    named = (int(own[3]), next(i for i in range(24) if i not in own.tolist()))
    made = challenge(1.0, own, examples=named)
    assert made.unwanted.tolist() == [3]
    assert not set(named) & set(made.owned.tolist())
    assert len(made.owned) == 24 - 8 - 1


def test_a_summary_is_of_finite_errors_alone() -> None:
    rows = [
        SimpleNamespace(error=error, benign=benign, accepted=accepted)
        for error, benign, accepted in (
            (1.0, 2.0, True),
            (3.0, None, False),
            (float("nan"), 8.0, False),
            (9.0, 4.0, False),
        )
    ]
    assert summarise(rows) == {"metrics": {"accepted": 0.25, "error": 3, "honest_error": 4}, "moves": 4}
    assert summarise([]) == {"metrics": {}, "moves": 0}


class OneLevelMore(Forgery):
    """Claims images that are a grey level brighter where there is room, and labels as they were."""

    pixels = "uint8"

    def forge(self, challenge: Challenge) -> Batch:
        levels = torch.round(challenge.batch.images * 255)
        return Batch(images=(levels + 1).clamp(max=255) / 255, labels=challenge.batch.labels)


def test_a_move_says_how_far_unwanted_pixels_were_moved() -> None:
    played = replace(game(at=(2,), fractions=(0.5,)), forgeries={"brighter": OneLevelMore()})
    (move,) = play(played)
    own = central_indices(TRAINING, 2)
    places = challenge(0.5, own).unwanted
    before = DATA.train.batch(own)[places]
    moved = torch.where(before < 1, 1 / 255, 0.0)
    assert move.row.moved == pytest.approx(float(moved.square().mean().sqrt()), rel=1e-4)
    model = fresh(0)
    load_weights(model, by_hand(steps=2)[2])
    losses = functional.cross_entropy(model(before), DATA.train.labels[own][places])
    assert move.row.loss == pytest.approx(float(losses))
    assert (move.row.step, move.row.batch, move.row.unwanted, move.row.size) == (2, 2, 4, 8)
    assert move.row.gone == 4
    assert move.claimed is not None
    assert not move.row.planned
    assert not move.row.accepted
    assert move.row.check == "step"
    assert "from what was recorded" in move.row.reason
    assert move.row.error > move.row.delta


@pytest.mark.parametrize(("at", "every", "last"), [(6, 3, 7), (5, 3, 7), (4, 3, 7), (2, 3, 5), (6, 1, 7)])
def test_an_interval_ends_with_the_training_at_the_latest(
    at: int, every: int, last: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = list[RecordedStep]()
    monkeypatch.setattr(forge, "judge_step", lambda step, *rest: seen.append(step) or judge_step(step, *rest))
    list(play(replace(game(at=(at,), every=every), forgeries={"brighter": OneLevelMore()})))
    (step,) = seen
    assert len(step.following) == last - at - 1
    assert equal(step.after, by_hand()[last])


def test_rules_are_those_of_the_config_unless_told() -> None:
    config = compose(["forgery=[greedy]", "data=tiny", "model=softmax", "audit=proof_of_learning"])
    assert build_central.forging_game(config).rules == Rules()


@pytest.mark.parametrize("text", [None, "no key", "ab" * 31, "ab" * 33])
def test_what_is_no_key_is_refused(tmp_path: Path, text: str | None) -> None:
    make_keys(tmp_path / "keys")
    signer, reader = prover_keys(tmp_path / "keys", 0)
    expected, own = verifier_keys(tmp_path / "keys", 0)
    assert signer.public_key().public_bytes_raw() == expected.public_bytes_raw()
    assert reader.public_bytes_raw() == own.public_key().public_bytes_raw()
    assert (tmp_path / "keys" / "prover.secret").stat().st_mode & 0o777 == 0o600
    with pytest.raises(FedsimError, match="is there already"):
        make_keys(tmp_path / "keys")
    wrong = tmp_path / "keys" / "prover.secret"
    wrong.unlink()
    if text is not None:
        wrong.write_text(text)
    with pytest.raises(FedsimError, match=r"prover\.secret: expected a key of 64 hex digits"):
        prover_keys(tmp_path / "keys", 0)


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_a_proof_holds_checkpoints_in_its_precision(tmp_path: Path, precision: str) -> None:
    folder = RunFolder(tmp_path / "run")
    path = prove(replace(TRAINING, precision=precision), 2, folder, name="proof", config_text="")
    opened = unseal(path.read_bytes(), *verifier_keys(None, TRAINING.seed))
    proof = from_bytes(opened.payload)
    signer, _ = prover_keys(None, TRAINING.seed)  # whose key, and whose data, decide where training begins
    root, prover = commitment_to(DATA.train).root, signer.public_key().public_bytes_raw()
    own = by_hand(bound(TRAINING, prover, nonce_of(None, TRAINING.seed), root))
    truth = [own[step] for step in (0, 2, 4, 6, 7)]
    if precision == "float16":
        truth = [{name: tensor.half().float() for name, tensor in weights.items()} for weights in truth]
    assert [equal(a, b) for a, b in zip(proof.trace.checkpoints, truth, strict=True)] == [True] * 5
    assert (proof.precision, proof.initial, proof.trace.every) == (precision, "random", 2)
    if precision == "float32":
        other = replace(TRAINING, learning_rate=0.4)
        for pinned, check in ((True, "settings"), (False, "")):
            verdict = verify_file(
                read_proof(path), other, ProofOfLearning(every=2, pin_learning_rate=pinned), generator(9)
            )
            assert (verdict.check, verdict.accepted) == (check, not pinned)
    summary = folder.summary()
    assert (summary["steps"], summary["every"], summary["own_keys"]) == (7, 2, False)
    assert summary["bytes"] == path.stat().st_size
