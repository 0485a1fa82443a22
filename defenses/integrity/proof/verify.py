"""Is a proof of learning true? The largest steps and some at random are done again.

Paper: Jia et al., Proof-of-Learning: Definitions and Practice (S&P 2021), algorithm 2. Random steps beside
    the largest stop a prover who does the largest honestly and makes up the rest.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from torch import Generator, nn

from fedsim.core.errors import FedsimError, in_words, shortened
from fedsim.core.training import (
    Batch,
    Trace,
    batch_digest,
    load_weights,
    sgd_step,
    tensors_digest,
    weights_of,
)
from fedsim.core.types import Task, Verdict, Weights, form_problem
from fedsim.defenses.integrity.proof.distances import distance
from fedsim.defenses.integrity.proof.domain import batch_problem
from fedsim.defenses.integrity.proof.initialisation import initial_problem
from fedsim.defenses.integrity.proof.proof import Malformed, Proof, from_bytes
from fedsim.defenses.integrity.proof.seal import BadSignature, Unreadable, unseal

Reveal = Callable[[Sequence[int], Sequence[tuple[int, ...]]], Sequence[Batch]]


@dataclass(frozen=True, kw_only=True)
class Thoroughness:
    """How much a verifier looks at."""

    top: int = 1  # Q: of each epoch, the largest updates
    random: int = 1  # R: of each epoch, others, drawn after sealing
    delta: float = 1e-6  # how far a recomputed checkpoint may be from the claimed one
    distance: str = "l2"
    domain: str = "uint8"  # where pixels must lie
    epoch: int | None = None  # steps; None: all is one epoch


@dataclass(frozen=True, kw_only=True, eq=False)
class Expected:
    """What the verifier knows without the proof."""

    model: nn.Module  # its weights are overwritten
    task: Task
    signer: Ed25519PublicKey
    reader: X25519PrivateKey
    round: int = 0
    client: int = 0
    parent: Weights | None = None  # where training must have begun; None: at a random initialisation
    fresh: Callable[[int], Weights] | None = None  # draws initialisations to compare with
    received: Weights | None = None  # the update that came with the proof
    learning_rate: float | None = None  # None: any. Pinned, it stops proofs of endlessly small steps
    steps: int | None = None
    every: int | None = None  # None: any. The prover's choice would decide how much is looked at
    batch_size: int | None = None
    num_examples: int | None = None  # that the prover disclosed


class Rejected(FedsimError):
    """A check that failed."""

    def __init__(self, check: str, reason: str, step: int | None = None) -> None:
        super().__init__(reason)
        self.check, self.step = check, step


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
    started, work = time.perf_counter(), Work()
    verdict = Verdict(
        round=expected.round, client=expected.client, accepted=True, limit=how.delta, bytes=len(sealed)
    )
    found: dict[str, Any] = {}
    try:
        proof = _opened(sealed, expected)
        found["steps"] = len(proof.trace.digests)
        _check_claims(proof, expected)
        _check_steps(proof.trace, expected, how, reveal, challenge, work)
    except Rejected as error:
        found |= {"accepted": False, "check": error.check, "reason": shortened(str(error))}
        found["step"] = error.step
    found |= {"distance": work.largest, "recomputed": work.steps, "seconds": time.perf_counter() - started}
    return replace(verdict, **found)


@dataclass
class Work:
    """What a verification has cost and found so far."""

    steps: int = 0
    largest: float | None = None


def _opened(sealed: bytes, expected: Expected) -> Proof:
    try:
        return from_bytes(unseal(sealed, expected.signer, expected.reader).payload)
    except Malformed as error:
        raise Rejected("form", str(error)) from error
    except BadSignature as error:
        raise Rejected("signature", str(error)) from error
    except Unreadable as error:
        raise Rejected("decryption", str(error)) from error


def _check_claims(proof: Proof, expected: Expected) -> None:
    """Check what needs no training: identity, settings, where it began, and what came of it."""
    trace = proof.trace
    if (proof.round, proof.client) != (expected.round, expected.client):
        words = f"of round {proof.round}, client {proof.client}, not {expected.round}, {expected.client}"
        raise Rejected("identity", f"a proof {words}")
    own = weights_of(expected.model)
    if problem := form_problem(trace.checkpoints[0], own):
        raise Rejected("model", f"of another model: {problem}")
    if expected.learning_rate is not None and trace.learning_rate != expected.learning_rate:
        reason = f"learning rate {trace.learning_rate:g}, asked for {expected.learning_rate:g}"
        raise Rejected("settings", reason)
    if expected.steps is not None and len(trace.digests) != expected.steps:
        raise Rejected("settings", f"{len(trace.digests)} steps, asked for {expected.steps}")
    if expected.every is not None and trace.every != expected.every:
        raise Rejected("settings", f"checkpoints every {trace.every} steps, asked for {expected.every}")
    sizes = {len(step) for step in trace.indices}
    if expected.batch_size is not None and sizes != {expected.batch_size}:
        found = ", ".join(map(str, sorted(sizes)[:3]))
        raise Rejected("settings", f"batches of {found}, asked for {expected.batch_size}")
    if expected.num_examples not in (None, sum(map(len, trace.indices))):
        reason = f"{expected.num_examples} examples disclosed, {sum(map(len, trace.indices))} in the proof"
        raise Rejected("settings", reason)
    first = trace.checkpoints[0]
    if proof.parent != tensors_digest(first):
        raise Rejected("initial", "the parent's digest is not that of the first checkpoint")
    if expected.parent is not None:
        if proof.initial != "parent" or not _equal(first, expected.parent):
            raise Rejected("initial", "training did not begin at the weights that were sent")
    elif proof.initial != "random":
        raise Rejected("initial", "a proof with a parent that is not known here")
    elif expected.fresh is not None and (problem := initial_problem(first, expected.fresh)):
        raise Rejected("initial", f"not a random initialisation: {problem}")
    if expected.received is not None:
        last = trace.checkpoints[-1]
        update = {name: last[name] - first[name] for name in last}
        if not _equal(update, expected.received):
            raise Rejected("reply", "the update is not the one that the proof ends with")


def _check_steps(
    trace: Trace,
    expected: Expected,
    how: Thoroughness,
    reveal: Reveal,
    challenge: Generator,
    work: Work,
) -> None:
    """Ask for the data of the chosen steps, check its digests, and do them again."""
    places = chosen_places(trace, how, challenge)
    for place in places:
        span = trace.span(place)
        try:
            batches = list(reveal(list(span), [trace.indices[step] for step in span]))
        except FedsimError as error:
            raise Rejected("data", f"the batches were not shown: {in_words(error)}", span[0]) from error
        if len(batches) != len(span):
            raise Rejected("data", f"{len(span)} batches asked for, {len(batches)} shown", span[0])
        for step, batch in zip(span, batches, strict=True):
            if problem := batch_problem(batch, len(trace.indices[step]), expected.task, how.domain):
                raise Rejected("data", problem, step)
            if batch_digest(batch) != trace.digests[step]:
                raise Rejected("data", "the batch shown is not the one in the proof", step)
        gap = recompute(trace, place, expected.model, batches, how.distance)
        work.steps += len(span)
        work.largest = gap if work.largest is None else max(work.largest, gap)
        if not gap <= how.delta:
            reason = f"{how.distance} {gap:.3g} from what was claimed, at most {how.delta:.3g}"
            raise Rejected("step", reason, span[0])


def chosen_places(trace: Trace, how: Thoroughness, challenge: Generator) -> list[int]:
    """Return the checkpoints to start from: of each epoch the largest updates, and others at random."""
    pairs = zip(trace.checkpoints, trace.checkpoints[1:], strict=False)
    sizes = [_size_of_update(before, after) for before, after in pairs]
    number = len(sizes) if how.epoch is None else max(1, how.epoch // trace.every)
    chosen = list[int]()
    for start in range(0, len(sizes), number):
        places = sorted(range(start, min(start + number, len(sizes))), key=lambda place: -sizes[place])
        rest = places[how.top :]
        order = torch.randperm(len(rest), generator=challenge)[: how.random].tolist()
        chosen += places[: how.top] + [rest[place] for place in order]
    return chosen


def _size_of_update(before: Weights, after: Weights) -> float:
    """Return the l2 length of an update, in few calls: there is one for every interval."""
    gaps = torch._foreach_sub(list(after.values()), list(before.values()))
    return float(torch.stack(torch._foreach_norm(gaps)).norm())


def recompute(trace: Trace, place: int, model: nn.Module, batches: Sequence[Batch], kind: str) -> float:
    """Train from a checkpoint to the next; return how far the result is from the claimed one."""
    load_weights(model, trace.checkpoints[place])
    device = next(model.parameters()).device
    try:
        for batch in batches:
            moved = Batch(images=batch.images.to(device), labels=batch.labels.to(device))
            sgd_step(model, moved, trace.learning_rate)
    except Exception as error:  # whatever a model makes of what somebody sent
        raise Rejected("data", f"the model does not take the batch shown: {in_words(error)}") from error
    return distance(kind, weights_of(model), trace.checkpoints[place + 1])


def _equal(one: Weights, other: Weights) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
