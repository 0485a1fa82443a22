"""Is the proof of a user's own loop true? The loop itself is run, on the intervals that are drawn."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fedsim.core.errors import FedsimError, in_words, shortened
from fedsim.core.randomness import undisturbed
from fedsim.core.training import MODEL, tensors_digest
from fedsim.core.types import Verdict, Weights
from fedsim.defenses.integrity.proof.again import Asked, Interval, check_progress, done_again
from fedsim.defenses.integrity.proof.claims import check_claims
from fedsim.defenses.integrity.proof.expected import (
    MACHINE,
    Expected,
    Rejected,
    Thoroughness,
    Work,
    joined,
)
from fedsim.defenses.integrity.proof.machine import as_on
from fedsim.defenses.integrity.proof.proof import Proof
from fedsim.defenses.integrity.proof.reproduction import variations
from fedsim.defenses.integrity.proof.sampling import unseen_chance
from fedsim.defenses.integrity.proof.verify import is_exact, opened
from fedsim.integrity.keys import nonce_of, verifier_keys
from fedsim.integrity.prove_loop import Loop, secret_of
from fedsim.integrity.recorder import Plan, Recorder, begin
from fedsim.integrity.states import Stateful, padded, restore, state_of, tensors_in


class _Looked(BaseException):
    """The loop has shown what it had to: it is left here, so that nothing behind it is run."""


@dataclass
class _Findings:
    """What is known of a proof so far."""

    work: Work
    steps: int = 0
    unseen: float | None = None
    unpinned: str = ""
    began: bool = False  # the loop's own set-up is over: what fails from now on is the proof's fault


def verify_loop(
    sealed: bytes,
    train: Loop,
    how: Thoroughness,
    challenge: torch.Generator,
    *,
    keys: Path | None = None,
    seed: int = 0,
    model: Weights | None = None,
    work: Work | None = None,
) -> Verdict:
    """Judge a sealed proof of a loop by running the verifier's own copy of that loop where it is drawn.

    model: the model's state that the proof must end with. What the loop does after its last batch is never
    run; a loop that cannot be set up here raises. work: as in verify.
    """
    signer, reader = verifier_keys(keys, seed)
    started, found = time.perf_counter(), _Findings(work=Work() if work is None else work)
    found.work.limit = how.delta
    verdict = Verdict(round=0, client=0, accepted=True, bytes=len(sealed))
    rejected: dict[str, Any] = {}
    try:
        proof = opened(sealed, signer, reader)
        if not proof.trace.settings:
            raise Rejected("form", "a proof of plain SGD, not of a loop. Remedy: verify without --loop")
        nonce = nonce_of(keys, seed)
        secret = secret_of(signer.public_bytes_raw(), nonce)
        expected = Expected(signer=signer, reader=reader, nonce=nonce.hex())
        examiner = Examiner(secret, proof, expected, how, challenge, found, model)
        with as_on(proof.machine, proof.threads), undisturbed():
            examiner.exact = is_exact(proof, how)
            begin(secret)
            _run(train, examiner, found)
        if how.share == (0, 1):
            check_progress(found.work)
    except Rejected as error:
        rejected = {"accepted": False, "check": error.check, "reason": shortened(str(error))}
        rejected["step"] = error.step
    work = found.work
    return replace(
        verdict,
        steps=found.steps,
        unseen=found.unseen,
        unpinned=found.unpinned,
        distance=work.largest,
        limit=work.limit,
        recomputed=work.steps,
        seconds=time.perf_counter() - started,
        **rejected,
    )


def _run(train: Loop, examiner: "Examiner", found: _Findings) -> None:
    try:
        train(examiner)
    except (_Looked, Rejected, FedsimError, MemoryError) as end:
        if not isinstance(end, _Looked):
            raise
        return
    except Exception as error:  # whatever a loop makes of a state that somebody claims
        if not found.began:
            raise FedsimError(f"the loop fails before its first batch: {in_words(error)}") from error
        raise Rejected("state", f"the loop does not go on from what is claimed: {in_words(error)}") from error
    raise FedsimError("the loop never asked its recorder for a batch, or caught what ends it")


class Examiner(Recorder):
    """Has a loop do the intervals again that a challenge names, from the states that a proof claims."""

    exact: bool = False  # bits are expected to be the same

    def __init__(
        self,
        secret: bytes,
        proof: Proof,
        expected: Expected,
        how: Thoroughness,
        challenge: torch.Generator,
        found: _Findings,
        final: Weights | None,
    ) -> None:
        """Set what is judged, how thoroughly, and where to write what is found."""
        super().__init__(secret)
        self._proof, self._expected, self._how, self._challenge = proof, expected, how, challenge
        self._found, self._final = found, final

    def batches(self, plan: Plan, parts: Sequence[Stateful]) -> Iterator[Any]:
        """Hand out the batches of one interval after another."""
        trace, found = self._proof.trace, self._found
        how = replace(self._how, epoch=plan.epoch)
        self._check(plan, parts, how)
        found.began = True
        ways = [way for way in variations(torch.get_num_threads()) if way.exact and way.name != "the same"]
        others = [way for way in ways if way.gradient is None]  # of a loop, only machines can differ
        shown = _shown(plan, self._proof)
        asked = done_again(trace, how, self._challenge, found.work, shown, others, self.exact)
        interval = next(asked, None)
        while interval is not None:
            self._restore(parts, interval)
            with interval.way.around():
                for step, batch in zip(interval.span, interval.batches, strict=True):
                    self.hand_out(plan, step)
                    yield batch
            interval = _next(asked, self._end(parts, interval))
        raise _Looked

    def _check(self, plan: Plan, parts: Sequence[Stateful], how: Thoroughness) -> None:
        """Check all that needs no step: who, how many, which data in which order, beginning and end."""
        proof, (own, text) = self._proof, state_of(parts)
        trace, first = proof.trace, proof.trace.checkpoints[0]
        self._found.steps = len(trace.digests)
        end = None
        if self._final is not None:
            last = trace.checkpoints[-1]
            end = {name: tensor for name, tensor in last.items() if not name.startswith(MODEL)}
            end |= {f"{MODEL}{name}": tensor for name, tensor in self._final.items()}
        expected = replace(
            self._expected,
            start={**own, **padded({}, {n: t for n, t in first.items() if n not in own})},
            steps=plan.steps,
            every=plan.every,
            batch_size=plan.batch_size,
            commitment=plan.data,
            order=[plan.indices(step) for step in range(plan.steps)],
            final=end,
            owns_data=True,
        )
        self._found.unpinned = joined(expected.unpinned, "" if self.exact else MACHINE)
        check_claims(proof, expected, how)
        if trace.settings[0] != text:
            raise Rejected("settings", "the loop does not begin with the settings that are claimed", 0)
        self._found.unseen = unseen_chance(len(trace.checkpoints) - 1, how, trace.every)

    def _restore(self, parts: Sequence[Stateful], interval: Interval) -> None:
        trace, place = self._proof.trace, interval.place
        try:
            start = trace.checkpoints[place] if interval.start is None else interval.start
            restore(parts, start, trace.settings[place])
        except Exception as error:  # whatever somebody claims to be a state
            reason = f"not a state of this loop: {in_words(error)}"
            raise Rejected("state", reason, trace.span(place)[0]) from error
        for part in parts:
            if isinstance(part, torch.nn.Module):
                part.zero_grad(set_to_none=True)  # gradients are no part of a state

    def _end(self, parts: Sequence[Stateful], interval: Interval) -> Weights:
        trace = self._proof.trace
        tensors, text = state_of(parts)
        whole = interval.span == trace.span(interval.place)
        if whole and text != trace.settings[interval.place + 1]:
            raise Rejected("settings", "the settings are not those that the loop leads to", interval.span[0])
        return padded(tensors, trace.checkpoints[interval.place + 1])


def _next(asked: Asked, end: Weights) -> Interval | None:
    try:
        return asked.send(end)
    except StopIteration:
        return None


def _shown(plan: Plan, proof: Proof) -> Callable[[int], list[Any]]:
    """Return what finds the batches of an interval in the verifier's own data."""

    def shown(place: int) -> list[Any]:
        found = list[Any]()
        for step in proof.trace.span(place):
            batch = plan.batch(proof.trace.indices[step])
            if tensors_digest(tensors_in(batch)) != proof.trace.digests[step]:
                raise Rejected("data", "the batch here is not the one in the proof", step)
            found.append(batch)
        return found

    return shown
