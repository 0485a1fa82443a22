"""Is a proof of learning true? The largest steps and enough at random are done again.

Paper: Jia et al., Proof-of-Learning: Definitions and Practice (S&P 2021), algorithm 2. Random steps beside
    the largest stop a prover who does the largest honestly and makes up the rest.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from torch import Generator, nn
from torch.nn import functional

from fedsim.core.errors import FedsimError, in_words, shortened
from fedsim.core.training import Batch, Trace, batch_digest, load_weights, weights_of
from fedsim.core.types import Task, Verdict, Weights
from fedsim.defenses.integrity.proof.again import Interval, answered, check_progress, done_again
from fedsim.defenses.integrity.proof.checkpoints import Malformed
from fedsim.defenses.integrity.proof.claims import check_claims
from fedsim.defenses.integrity.proof.commitment import membership_problem
from fedsim.defenses.integrity.proof.distances import distance
from fedsim.defenses.integrity.proof.domain import batch_problem, copies_problem
from fedsim.defenses.integrity.proof.expected import (
    MACHINE,
    Expected,
    Rejected,
    Reveal,
    Thoroughness,
    Work,
    joined,
)
from fedsim.defenses.integrity.proof.machine import as_on, computes_alike
from fedsim.defenses.integrity.proof.proof import Proof, from_bytes
from fedsim.defenses.integrity.proof.reproduction import variations
from fedsim.defenses.integrity.proof.sampling import unseen_chance
from fedsim.defenses.integrity.proof.seal import BadSignature, Unreadable, unseal

LOOKS = 16  # checkpoints beside those done again whose loss is looked at
LEAP = (
    20.0  # the loss of a checkpoint, in units of the largest of the first's, the last's, and a blind guess's
)


def verify(
    sealed: bytes,
    expected: Expected,
    how: Thoroughness,
    reveal: Reveal,
    challenge: Generator,
    work: Work | None = None,
) -> Verdict:
    """Judge a sealed proof; never raises for what a prover sent.

    `reveal` asks for the batches of the chosen steps only, by their numbers and the proof's indices;
    `challenge` must be unknown to the prover. `work` is filled with what was found: where verifiers share a
    proof, some of that can be judged by all of it together alone (shares.py).
    """
    started, work = time.perf_counter(), Work() if work is None else work
    work.limit = how.delta
    verdict = Verdict(
        round=expected.round,
        client=expected.client,
        accepted=True,
        bytes=len(sealed),
        unpinned=expected.unpinned,
    )
    found: dict[str, Any] = {}
    try:
        proof = opened(sealed, expected.signer, expected.reader)
        trace = proof.trace
        if trace.settings:
            raise Rejected("form", "a proof of a loop, not of plain SGD. Remedy: --loop MODULE.FUNCTION")
        found["steps"] = len(trace.digests)
        check_claims(proof, expected, how)
        found["unseen"] = unseen_chance(len(trace.checkpoints) - 1, how, trace.every)
        if proof.precision == "float16":
            how = replace(how, bounded=False)
        with as_on(proof.machine, proof.threads):
            exact = is_exact(proof, how)
            found["unpinned"] = joined(expected.unpinned, "" if exact else MACHINE)
            _check_steps(trace, expected, how, reveal, challenge, work, exact)
        if how.share == (0, 1):
            check_progress(work)
    except Rejected as error:
        found |= {"accepted": False, "check": error.check, "reason": shortened(str(error))}
        found["step"] = error.step
    found["shown"] = 0 if expected.owns_data else work.shown
    found |= {"distance": work.largest, "recomputed": work.steps, "seconds": time.perf_counter() - started}
    return replace(verdict, limit=work.limit, **found)


def opened(sealed: bytes, signer: Ed25519PublicKey, reader: X25519PrivateKey) -> Proof:
    """Return the proof in an envelope; whatever is wrong with that rejects it."""
    try:
        return from_bytes(unseal(sealed, signer, reader).payload)
    except Malformed as error:
        raise Rejected("form", str(error)) from error
    except BadSignature as error:
        raise Rejected("signature", str(error)) from error
    except Unreadable as error:
        raise Rejected("decryption", str(error)) from error


def is_exact(proof: Proof, how: Thoroughness) -> bool:
    """Say whether a proof's bits can be expected here; refuse it where they must be, and cannot.

    Called as the proof's machine computes, as far as this one can.
    """
    alike = computes_alike(proof.machine, proof.threads, proof.libraries.get("torch", ""))
    if how.strict and how.machines == "same" and not alike:
        reason = f"computed on {proof.machine!r}, which is not a machine like this one"
        raise Rejected("machine", reason)
    return how.strict and how.exact and alike and proof.precision == "float32"


def _check_steps(
    trace: Trace,
    expected: Expected,
    how: Thoroughness,
    reveal: Reveal,
    challenge: Generator,
    work: Work,
    exact: bool = False,
) -> None:
    """Ask for the data of the chosen steps, check it, and do them again."""
    shown, (model, task) = dict[int, list[Batch]](), expected.plain

    def batches(place: int) -> list[Batch]:
        shown.clear()
        shown[place] = _shown(trace, place, expected, how, reveal)
        work.shown += sum(size_of(batch) for batch in shown[place])
        return shown[place]

    def again(interval: Interval) -> Weights:
        return recomputed(trace, interval, model)

    ways = [way for way in variations(torch.get_num_threads()) if way.exact][1:]
    answered(done_again(trace, how, challenge, work, batches, ways, exact), again)
    if how.strict and shown:
        (last,) = shown.values()
        _check_losses(trace, set(work.places), model, last[0], challenge, task)


def size_of(batch: Batch) -> int:
    """Return how many bytes a batch takes on the wire, with its paths."""
    return batch.images.nbytes + batch.labels.nbytes + len(batch.paths)


def _shown(trace: Trace, place: int, expected: Expected, how: Thoroughness, reveal: Reveal) -> list[Batch]:
    """Ask for the batches of an interval, and check that they are data, and the data of the proof."""
    span = trace.span(place)
    try:
        batches = list(reveal(list(span), [trace.indices[step] for step in span]))
    except FedsimError as error:
        raise Rejected("data", f"the batches were not shown: {in_words(error)}", span[0]) from error
    if len(batches) != len(span):
        raise Rejected("data", f"{len(span)} batches asked for, {len(batches)} shown", span[0])
    for step, batch in zip(span, batches, strict=True):
        indices = trace.indices[step]
        if problem := batch_problem(batch, len(indices), expected.plain[1], how.domain):
            raise Rejected("data", problem, step)
        if batch_digest(batch) != trace.digests[step]:
            raise Rejected("data", "the batch shown is not the one in the proof", step)
        if how.strict and (problem := copies_problem(batch, len(set(indices)))):
            raise Rejected("data", problem, step)
        if expected.commitment is None or expected.owns_data:
            continue
        if problem := membership_problem(batch, indices, expected.commitment):
            raise Rejected("data", problem, step)
    return batches


def recompute(trace: Trace, place: int, model: nn.Module, batches: Sequence[Batch], kind: str) -> float:
    """Train from a checkpoint to the next; return how far the result is from the claimed one."""
    end = recomputed(trace, Interval(place=place, span=trace.span(place), batches=batches), model)
    return distance(kind, end, trace.checkpoints[place + 1])


def recomputed(trace: Trace, interval: Interval, model: nn.Module) -> Weights:
    """Train from a checkpoint to the next by plain SGD, in the way that is asked for."""
    load_weights(model, trace.checkpoints[interval.place])
    device = next(model.parameters()).device
    try:
        with interval.way.around():
            for batch in interval.batches:
                moved = Batch(images=batch.images.to(device), labels=batch.labels.to(device))
                if trace.gradient:
                    gradient = interval.way.gradient_of(model, moved)
                    return {name: tensor.cpu() for name, tensor in gradient.items()}
                interval.way.step(model, moved, trace.learning_rate)
    except MemoryError:
        raise
    except Exception as error:  # whatever a model makes of what somebody sent
        raise Rejected("data", f"the model does not take the batch shown: {in_words(error)}") from error
    return weights_of(model)


def _check_losses(
    trace: Trace, places: set[int], model: nn.Module, batch: Batch, challenge: Generator, task: Task
) -> None:
    """Look at the loss of some checkpoints between intervals that were not done again.

    A way over places where nothing is learnt, to hide a jump behind a larger step, shows there.
    """
    beside = [p for p in range(1, len(trace.checkpoints) - 1) if p not in places and p - 1 not in places]
    if not beside:
        return
    order = torch.randperm(len(beside), generator=challenge)[:LOOKS].tolist()
    usual = [_loss(model, trace.checkpoints[place], batch) for place in (0, -1)]
    most = LEAP * max(*usual, math.log(task.num_classes))
    for place in sorted(beside[number] for number in order):
        loss = _loss(model, trace.checkpoints[place], batch)
        if not loss <= most:
            reason = f"a checkpoint of loss {loss:.3g}, the first has {usual[0]:.3g}, the last {usual[1]:.3g}"
            raise Rejected("loss", reason, place * trace.every)


def _loss(model: nn.Module, weights: Weights, batch: Batch) -> float:
    load_weights(model, weights)
    device = next(model.parameters()).device
    with torch.no_grad():
        return float(functional.cross_entropy(model(batch.images.to(device)), batch.labels.to(device)))
