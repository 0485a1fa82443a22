"""What is checked of a proof without doing a step again: who, what was asked for, beginning and end."""

import torch

from fedsim.core.training import Trace, tensors_digest
from fedsim.core.types import Weights, form_problem
from fedsim.defenses.integrity.proof.calibration import Calibration, calibration_from, shape_of
from fedsim.defenses.integrity.proof.expected import Expected, Rejected, Thoroughness
from fedsim.defenses.integrity.proof.initialisation import initial_problem
from fedsim.defenses.integrity.proof.proof import Proof

_REPLIES = {"update": "an update", "gradient": "a gradient"}
GROWTH = 4.0  # norm of a checkpoint, in units of the larger of the first and the last


def check_claims(proof: Proof, expected: Expected, how: Thoroughness) -> None:
    """Check identity, settings, order of the data, where training began, what came of it, and norms."""
    trace = proof.trace
    if (proof.round, proof.client) != (expected.round, expected.client):
        words = f"of round {proof.round}, client {proof.client}, not {expected.round}, {expected.client}"
        raise Rejected("identity", f"a proof {words}")
    if problem := form_problem(trace.checkpoints[0], expected.form):
        raise Rejected("model", f"of another model: {problem}")
    _check_settings(trace, proof.precision, expected)
    _check_calibration(proof, expected)
    _check_data(proof, expected)
    _check_beginning(proof, expected)
    if expected.received is not None:
        first, last = trace.checkpoints[0], trace.checkpoints[-1]
        reply = last if trace.gradient else {name: last[name] - first[name] for name in last}
        if not _equal(expected.defended(reply), expected.received):
            raise Rejected("reply", f"the {expected.kind} is not the one that the proof ends with")
    if expected.final is not None and not _equal(expected.final, trace.checkpoints[-1]):
        raise Rejected("model", "the model is not the one that the proof ends with")
    if how.strict:
        _check_norms(trace)


def _check_settings(trace: Trace, precision: str, expected: Expected) -> None:
    if trace.gradient != (expected.kind == "gradient"):
        raise Rejected("settings", f"expected the proof of {_REPLIES[expected.kind]}")
    if expected.learning_rate is not None and trace.learning_rate != expected.learning_rate:
        reason = f"learning rate {trace.learning_rate:g}, asked for {expected.learning_rate:g}"
        raise Rejected("settings", reason)
    if expected.steps is not None and len(trace.digests) != expected.steps:
        raise Rejected("settings", f"{len(trace.digests)} steps, asked for {expected.steps}")
    if expected.every is not None and trace.every != expected.every:
        raise Rejected("settings", f"checkpoints every {trace.every} steps, asked for {expected.every}")
    if expected.precision is not None and precision != expected.precision:
        raise Rejected("settings", f"checkpoints in {precision}, asked for {expected.precision}")
    sizes = {len(step) for step in trace.indices}
    if expected.batch_size is not None and sizes != {expected.batch_size}:
        found = ", ".join(map(str, sorted(sizes)[:3]))
        raise Rejected("settings", f"batches of {found}, asked for {expected.batch_size}")
    if expected.num_examples not in (None, sum(map(len, trace.indices))):
        reason = f"{expected.num_examples} examples disclosed, {sum(map(len, trace.indices))} in the proof"
        raise Rejected("settings", reason)


def _check_calibration(proof: Proof, expected: Expected) -> None:
    """Refuse a delta that was measured for something else: that a proof names, or that the verifier has."""
    trace, found = proof.trace, list[Calibration]()
    if proof.calibration:
        try:
            found.append(calibration_from(proof.calibration))
        except (TypeError, ValueError) as error:
            raise Rejected("calibration", f"not a calibration: {error}") from error
    if expected.calibration is not None:
        if found and found[0] != expected.calibration:
            raise Rejected("calibration", "the proof was made for another calibration than the verifier's")
        found.append(expected.calibration)
    for calibration in found:
        problem = calibration.problem(
            every=trace.every,
            learning_rate=trace.learning_rate,
            batch_size=max(map(len, trace.indices)),
            model=shape_of(trace.checkpoints[0]),
            machine=proof.machine,
        )
        if problem:
            raise Rejected("calibration", problem)


def _check_data(proof: Proof, expected: Expected) -> None:
    """Check what the data was said to be, and the order of its examples over all steps."""
    known = expected.commitment
    if expected.nonce is not None and proof.nonce != expected.nonce:
        raise Rejected("initial", "made for another nonce than the verifier's")
    if known is not None and proof.data not in (("", known.root) if not expected.nonce else (known.root,)):
        raise Rejected("data", "a proof of other data than was committed to")
    if expected.order is None:
        return
    for step, (found, asked) in enumerate(zip(proof.trace.indices, expected.order, strict=False)):
        if tuple(found) != tuple(asked):
            raise Rejected("order", "the examples are not those whose turn it was", step)
    if len(proof.trace.indices) != len(expected.order):
        raise Rejected("order", f"{len(proof.trace.indices)} steps, order of {len(expected.order)}")


def _check_beginning(proof: Proof, expected: Expected) -> None:
    first = proof.trace.checkpoints[0]
    if proof.parent != tensors_digest(first):
        raise Rejected("initial", "the parent's digest is not that of the first checkpoint")
    if expected.parent is not None:
        if proof.initial != "parent" or not _same_bits(first, expected.parent):
            raise Rejected("initial", "training did not begin at the weights that were sent")
    elif proof.initial != "random":
        raise Rejected("initial", "a proof with a parent that is not known here")
    elif expected.start is not None:
        start = expected.start
        if proof.precision == "float16":
            start = {name: tensor.half().float() for name, tensor in start.items()}
        if not _same_bits(first, start):
            raise Rejected("initial", "not the initialisation that the prover's name and the nonce lead to")
    elif expected.fresh is not None and (problem := initial_problem(first, expected.fresh)):
        raise Rejected("initial", f"not a random initialisation: {problem}")


def _check_norms(trace: Trace) -> None:
    """Refuse a way over weights far larger than those it begins and ends with: no training goes there."""
    norms = [_norm(trace.model_in(weights)) for weights in trace.checkpoints]
    most = GROWTH * max(norms[0], norms[-1])
    for place, norm in enumerate(norms):
        if not norm <= most:
            reason = f"a checkpoint of norm {norm:.3g} between {norms[0]:.3g} and {norms[-1]:.3g}"
            raise Rejected("norm", reason, min(place * trace.every, len(trace.digests)))


def _norm(weights: Weights) -> float:
    if not weights:
        return 0.0
    return float(torch.stack([norm.float() for norm in torch._foreach_norm(list(weights.values()))]).norm())


def _equal(one: Weights, other: Weights) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def _same_bits(one: Weights, other: Weights) -> bool:
    """Say whether tensors are the same to the bit: zero has two, and a loop may divide by it."""
    return tensors_digest(one) == tensors_digest({name: other[name] for name in one if name in other})
