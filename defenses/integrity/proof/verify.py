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
from torch import Generator, nn
from torch.nn import functional

from fedsim.core.errors import FedsimError, in_words, shortened
from fedsim.core.training import Batch, Trace, batch_digest, load_weights, sgd_step, weights_of
from fedsim.core.types import Verdict, Weights
from fedsim.defenses.integrity.proof.claims import check_claims
from fedsim.defenses.integrity.proof.commitment import membership_problem
from fedsim.defenses.integrity.proof.distances import distance
from fedsim.defenses.integrity.proof.domain import batch_problem, copies_problem
from fedsim.defenses.integrity.proof.expected import Expected, Rejected, Reveal, Thoroughness, Work
from fedsim.defenses.integrity.proof.machine import as_on
from fedsim.defenses.integrity.proof.proof import Malformed, Proof, from_bytes
from fedsim.defenses.integrity.proof.reproduction import SAFETY, spread
from fedsim.defenses.integrity.proof.sampling import chosen_places, unseen_chance
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
) -> Verdict:
    """Judge a sealed proof; never raises for what a prover sent.

    `reveal` asks for the batches of the chosen steps only, by their numbers and the proof's indices;
    `challenge` must be unknown to the prover.
    """
    started, work = time.perf_counter(), Work(limit=how.delta)
    verdict = Verdict(
        round=expected.round,
        client=expected.client,
        accepted=True,
        bytes=len(sealed),
        unpinned=expected.unpinned,
    )
    found: dict[str, Any] = {}
    try:
        proof = _opened(sealed, expected)
        trace = proof.trace
        found["steps"] = len(trace.digests)
        check_claims(proof, expected, how)
        found["unseen"] = unseen_chance(len(trace.checkpoints) - 1, how, trace.every)
        with as_on(proof.machine, proof.threads):
            _check_steps(trace, expected, how, reveal, challenge, work)
        if how.strict:
            _check_progress(work)
    except Rejected as error:
        found |= {"accepted": False, "check": error.check, "reason": shortened(str(error))}
        found["step"] = error.step
    found |= {"distance": work.largest, "recomputed": work.steps, "seconds": time.perf_counter() - started}
    return replace(verdict, limit=work.limit, **found)


def _opened(sealed: bytes, expected: Expected) -> Proof:
    try:
        return from_bytes(unseal(sealed, expected.signer, expected.reader).payload)
    except Malformed as error:
        raise Rejected("form", str(error)) from error
    except BadSignature as error:
        raise Rejected("signature", str(error)) from error
    except Unreadable as error:
        raise Rejected("decryption", str(error)) from error


def _check_steps(
    trace: Trace,
    expected: Expected,
    how: Thoroughness,
    reveal: Reveal,
    challenge: Generator,
    work: Work,
) -> None:
    """Ask for the data of the chosen steps, check it, and do them again."""
    shown: list[Batch] = []
    places = chosen_places(trace, how, challenge)
    for place in places:
        shown = _shown(trace, place, expected, how, reveal)
        gap, limit = _gap(trace, place, expected.model, shown, how)
        span = trace.span(place)
        work.steps += len(span)
        work.looked += 1
        work.largest = gap if work.largest is None else max(work.largest, gap)
        work.limit = limit if work.limit is None else max(work.limit, limit)
        work.still += distance(how.distance, trace.checkpoints[place], trace.checkpoints[place + 1]) <= limit
        if not gap <= limit:
            reason = f"{how.distance} {gap:.3g} from what was claimed, at most {limit:.3g}"
            raise Rejected("step", reason, span[0])
    if how.strict and shown:
        _check_losses(trace, set(places), expected, shown[0], challenge)


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
        if problem := batch_problem(batch, len(indices), expected.task, how.domain):
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


def _gap(
    trace: Trace, place: int, model: nn.Module, batches: Sequence[Batch], how: Thoroughness
) -> tuple[float, float]:
    """Return how far an interval ends from where it should, and how far it may.

    Beyond delta the interval is done again in other ways: where rounding grows, honest machines differ, too.
    What it may grow to is a small share of the interval's own length, so that nobody is carried off by it.
    """
    gap, limit = recompute(trace, place, model, batches, how.distance), how.delta
    if gap > limit and how.widen and math.isfinite(gap):
        before, after = trace.checkpoints[place : place + 2]
        most = how.widen * distance(how.distance, before, after)
        if limit < gap <= most:
            honest = spread(model, before, batches, trace.learning_rate, how.distance)
            limit = max(limit, min(SAFETY * honest, most))
    return gap, limit


def recompute(trace: Trace, place: int, model: nn.Module, batches: Sequence[Batch], kind: str) -> float:
    """Train from a checkpoint to the next; return how far the result is from the claimed one."""
    load_weights(model, trace.checkpoints[place])
    device = next(model.parameters()).device
    try:
        for batch in batches:
            moved = Batch(images=batch.images.to(device), labels=batch.labels.to(device))
            sgd_step(model, moved, trace.learning_rate)
    except MemoryError:
        raise
    except Exception as error:  # whatever a model makes of what somebody sent
        raise Rejected("data", f"the model does not take the batch shown: {in_words(error)}") from error
    return distance(kind, weights_of(model), trace.checkpoints[place + 1])


def _check_losses(
    trace: Trace, places: set[int], expected: Expected, batch: Batch, challenge: Generator
) -> None:
    """Look at the loss of some checkpoints between intervals that were not done again.

    A way over places where nothing is learnt, to hide a jump behind a larger step, shows there.
    """
    beside = [p for p in range(1, len(trace.checkpoints) - 1) if p not in places and p - 1 not in places]
    if not beside:
        return
    order = torch.randperm(len(beside), generator=challenge)[:LOOKS].tolist()
    usual = [_loss(expected.model, trace.checkpoints[place], batch) for place in (0, -1)]
    most = LEAP * max(*usual, math.log(expected.task.num_classes))
    for place in sorted(beside[number] for number in order):
        loss = _loss(expected.model, trace.checkpoints[place], batch)
        if not loss <= most:
            reason = f"a checkpoint of loss {loss:.3g}, the first has {usual[0]:.3g}, the last {usual[1]:.3g}"
            raise Rejected("loss", reason, place * trace.every)


def _loss(model: nn.Module, weights: Weights, batch: Batch) -> float:
    load_weights(model, weights)
    device = next(model.parameters()).device
    with torch.no_grad():
        return float(functional.cross_entropy(model(batch.images.to(device)), batch.labels.to(device)))


def _check_progress(work: Work) -> None:
    """Refuse a proof whose intervals are mostly too short to tell work from none."""
    if 2 * work.still > work.looked:
        reason = f"{work.still} of {work.looked} intervals are no longer than the error that is allowed"
        raise Rejected("progress", f"{reason}: who did nothing would pass")
