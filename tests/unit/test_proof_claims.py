"""What is checked of a proof without doing a step again: each false claim alone turns a good one down."""

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedsim.contracts import BATCH, STEPS, small_model, small_work
from fedsim.core.training import Commitment, Trace, honest, tensors_digest, weights_of
from fedsim.core.types import Weights
from fedsim.defenses.integrity.proof.calibration import Calibration, shape_of
from fedsim.defenses.integrity.proof.claims import GROWTH, check_claims
from fedsim.defenses.integrity.proof.expected import Expected, Rejected, Thoroughness
from fedsim.defenses.integrity.proof.proof import Proof, proof_of

TRACE = honest(small_work()).trace
assert TRACE is not None
PROOF = proof_of(TRACE, subject="a test", round=3, client=1)
FIRST, LAST = TRACE.checkpoints[0], TRACE.checkpoints[-1]
RATE = TRACE.learning_rate
CALIBRATION = Calibration(
    delta=1e-6,
    distance="l2",
    every=1,
    learning_rate=RATE,
    batch_size=BATCH,
    model=shape_of(FIRST),
    machines=[PROOF.machine],
    intervals=9,
)
COMMITMENT = Commitment(root="ab" * 32, examples=200)
EXPECTED = Expected(
    model=small_model(),
    signer=Ed25519PrivateKey.generate().public_key(),
    reader=X25519PrivateKey.generate(),
    round=3,
    client=1,
    parent=FIRST,
    learning_rate=RATE,
    steps=STEPS,
    every=1,
    batch_size=BATCH,
    num_examples=STEPS * BATCH,
    order=TRACE.indices,
    received={name: LAST[name] - FIRST[name] for name in LAST},
    final=LAST,
    calibration=CALIBRATION,
    commitment=COMMITMENT,
)


def moved(weights: Weights, by: float = 1e-4) -> Weights:
    return {name: tensor + by for name, tensor in weights.items()}


def refusal(proof: Proof, expected: Expected, **how: Any) -> tuple[str, str] | None:
    try:
        check_claims(proof, expected, Thoroughness(**how))
    except Rejected as error:
        return error.check, str(error)
    return None


def traced(**changes: Any) -> Proof:
    return replace(PROOF, trace=replace(TRACE, **changes))


def test_a_proof_that_claims_what_was_asked_for_passes() -> None:
    assert refusal(PROOF, EXPECTED) is None
    named = replace(PROOF, calibration=asdict(CALIBRATION), data=COMMITMENT.root)
    assert refusal(named, EXPECTED) is None
    free = Expected(model=small_model(), signer=EXPECTED.signer, reader=EXPECTED.reader, round=3, client=1)
    assert refusal(PROOF, replace(free, parent=FIRST, precision=None)) is None


@pytest.mark.parametrize(
    ("change", "check", "words"),
    [
        ({"round": 4}, "identity", "of round 3, client 1, not 4, 1"),
        ({"client": 0}, "identity", "of round 3, client 1, not 3, 0"),
        ({"model": torch.nn.Linear(2, 2)}, "model", "of another model"),
        ({"kind": "gradient"}, "settings", "expected the proof of a gradient"),
        ({"learning_rate": 2 * RATE}, "settings", f"learning rate {RATE:g}, asked for {2 * RATE:g}"),
        ({"steps": STEPS + 1}, "settings", f"{STEPS} steps, asked for {STEPS + 1}"),
        ({"every": 2}, "settings", "checkpoints every 1 steps, asked for 2"),
        ({"precision": "float16"}, "settings", "checkpoints in float32, asked for float16"),
        ({"batch_size": BATCH + 1}, "settings", f"batches of {BATCH}, asked for {BATCH + 1}"),
        ({"num_examples": 1}, "settings", f"1 examples disclosed, {STEPS * BATCH} in the proof"),
        ({"nonce": "ff"}, "initial", "another nonce"),
        ({"order": TRACE.indices[::-1]}, "order", "not those whose turn it was"),
        ({"order": (*TRACE.indices, TRACE.indices[0])}, "order", f"{STEPS} steps, order of {STEPS + 1}"),
        ({"parent": moved(FIRST)}, "initial", "did not begin at the weights that were sent"),
        ({"parent": None}, "initial", "a parent that is not known here"),
        ({"received": LAST}, "reply", "the update is not the one that the proof ends with"),
        ({"received": {}}, "reply", "the update is not the one that the proof ends with"),
        ({"final": FIRST}, "model", "the model is not the one that the proof ends with"),
        ({"calibration": replace(CALIBRATION, every=2)}, "calibration", "for 2, not 1 k"),
        ({"calibration": replace(CALIBRATION, batch_size=99)}, "calibration", f"for 99, not {BATCH} batch"),
        ({"calibration": replace(CALIBRATION, model="cd")}, "calibration", "for another model"),
        (
            {"calibration": replace(CALIBRATION, machines=["x"])},
            "calibration",
            "not measured for the machine",
        ),
    ],
)
def test_each_claim_alone_is_refused(change: dict[str, Any], check: str, words: str) -> None:
    found = refusal(PROOF, replace(EXPECTED, **change))
    assert found is not None
    assert found[0] == check
    assert words in found[1]


@pytest.mark.parametrize(
    ("proof", "check", "words"),
    [
        (replace(PROOF, parent=tensors_digest(LAST)), "initial", "the parent's digest is not that"),
        (replace(PROOF, initial="random"), "initial", "did not begin at the weights that were sent"),
        (replace(PROOF, data="cd" * 32), "data", "other data than was committed to"),
        (replace(PROOF, calibration={"delta": 1}), "calibration", "not a calibration"),
        (
            replace(PROOF, calibration=asdict(replace(CALIBRATION, delta=2e-6))),
            "calibration",
            "for another calibration than the verifier's",
        ),
        (traced(gradient=True), "settings", "expected the proof of an update"),
    ],
)
def test_each_change_of_a_proof_is_refused(proof: Proof, check: str, words: str) -> None:
    found = refusal(proof, EXPECTED)
    assert found is not None
    assert found[0] == check
    assert words in found[1]


def test_a_calibration_that_the_proof_names_binds_where_the_verifier_has_none() -> None:
    bound = replace(PROOF, calibration=asdict(replace(CALIBRATION, learning_rate=1.0)))
    found = refusal(bound, replace(EXPECTED, calibration=None))
    assert found is not None
    assert found[0] == "calibration"
    assert "learning rate" in found[1]


def test_with_a_nonce_the_data_must_be_named() -> None:
    nonced = replace(PROOF, nonce="ff")
    expected = replace(EXPECTED, nonce="ff")
    found = refusal(nonced, expected)
    assert found is not None
    assert found[0] == "data"
    assert refusal(replace(nonced, data=COMMITMENT.root), expected) is None


def half(weights: Weights) -> Weights:
    return {name: tensor.half().float() for name, tensor in weights.items()}


def test_a_beginning_that_follows_from_a_nonce_is_that_one_in_either_precision() -> None:
    random = replace(PROOF, initial="random")
    own = replace(EXPECTED, parent=None, start=FIRST)
    assert refusal(random, own) is None
    found = refusal(random, replace(own, start=moved(FIRST)))
    assert found is not None
    assert found[0] == "initial"
    assert "nonce lead to" in found[1]
    begun = replace(TRACE, checkpoints=(half(FIRST), *TRACE.checkpoints[1:]))
    rounded = replace(random, precision="float16", trace=begun, parent=tensors_digest(half(FIRST)))
    loose = replace(own, precision=None, received=None)
    assert refusal(rounded, loose) is None
    assert refusal(replace(rounded, precision="float32"), loose) is not None


def test_a_beginning_without_a_nonce_is_compared_with_fresh_ones() -> None:
    def fresh(number: int) -> Weights:
        torch.manual_seed(number)
        return weights_of(small_model())

    random, own = replace(PROOF, initial="random"), replace(EXPECTED, parent=None, fresh=fresh)
    assert refusal(random, own) is None
    stolen = replace(
        traced(checkpoints=(moved(FIRST, 1.0), *TRACE.checkpoints[1:])),
        initial="random",
        parent=tensors_digest(moved(FIRST, 1.0)),
    )
    found = refusal(stolen, own)
    assert found is not None
    assert "not a random initialisation" in found[1]


def scaled(trace: Trace, factor: float) -> Proof:
    middle = {name: factor * tensor for name, tensor in trace.checkpoints[2].items()}
    return replace(
        PROOF, trace=replace(trace, checkpoints=(*trace.checkpoints[:2], middle, *trace.checkpoints[3:]))
    )


def test_a_way_over_far_larger_weights_is_refused_by_the_strict_alone() -> None:
    assert refusal(scaled(TRACE, 0.9 * GROWTH), EXPECTED) is None
    found = refusal(scaled(TRACE, 1.2 * GROWTH), EXPECTED)
    assert found is not None
    assert found[0] == "norm"
    assert refusal(scaled(TRACE, 1.2 * GROWTH), EXPECTED, strict=False) is None


def test_what_leaves_a_client_is_compared_as_its_defenses_leave_it() -> None:
    double: Callable[[Weights], Weights] = lambda reply: {n: 2 * t for n, t in reply.items()}  # noqa: E731
    assert EXPECTED.received is not None
    assert refusal(PROOF, replace(EXPECTED, defended=double)) is not None
    assert refusal(PROOF, replace(EXPECTED, defended=double, received=double(EXPECTED.received))) is None
