"""Cheats on trainings outside of a federation: a malicious client's ways, with stolen weights as the goal."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from fedsim.core.interfaces import Behaviour
from fedsim.core.randomness import generator
from fedsim.core.training import Claim, LocalWork, Trace, weights_of
from fedsim.core.types import Weights
from fedsim.defenses.integrity.proof.proof import proof_of, to_bytes
from fedsim.defenses.integrity.proof.seal import seal
from fedsim.integrity.binding import bound, commitment_to
from fedsim.integrity.keys import nonce_of, prover_keys
from fedsim.integrity.prove_loop import Loop, LoopRecorder, sealed_loop
from fedsim.integrity.recorder import Plan
from fedsim.integrity.states import Stateful, restore, state_of
from fedsim.integrity.training import CentralTraining, batch_at, central_indices


def spoofed(
    training: CentralTraining, cheat: Behaviour, every: int, stolen: Weights | None
) -> tuple[bytes, Claim]:
    """Have a cheat make a sealed proof that it trained; also return what it claims.

    It follows the protocol as far as it likes: it knows the nonce, and what would be asked of it.
    """
    signer, reader = prover_keys(training.keys, training.seed)
    data, nonce = commitment_to(training.train), nonce_of(training.keys, training.seed)
    own = bound(training, signer.public_key().public_bytes_raw(), nonce, data.root)
    model = own.fresh(0)
    work = LocalWork(
        round=0,
        client=0,
        model=model,
        sent=weights_of(model),
        steps=training.steps,
        learning_rate=training.learning_rate,
        every=every,
        indices=lambda step: central_indices(own, step),
        batch=lambda indices: batch_at(training, indices),
        task=training.task,
        owned=torch.arange(len(training.train.labels)),
        generator=generator(training.seed, "spoof"),
        target=stolen,
    )
    claim = cheat.train(work)
    assert claim.trace is not None
    proof = replace(
        proof_of(claim.trace, subject="a training", initial="random"), data=data.root, nonce=nonce.hex()
    )
    return seal(to_bytes(proof), signer, reader), claim


def spoofed_loop(
    train: Loop, bend: Callable[[int, Weights], Weights], *, seed: int = 0, machine: str | None = None
) -> tuple[bytes, Trace]:
    """Have a cheat run a loop and bend its state at checkpoints; return the sealed proof and its trace.

    bend: of a checkpoint's number and the state that the loop has come to;
    machine: what it says that it computed on; None: what it did.
    """

    class Bending(LoopRecorder):
        def batches(self, plan: Plan, parts: Sequence[Stateful]) -> Iterator[Any]:
            for batch in super().batches(plan, parts):
                yield batch
                if (self.step + 1) % plan.every == 0:
                    tensors, text = state_of(parts)
                    restore(parts, bend((self.step + 1) // plan.every, tensors), text)

    return sealed_loop(train, Bending, None, seed, machine)
