"""Cheats on trainings outside of a federation: a malicious client's ways, with stolen weights as the goal."""

from dataclasses import replace

import torch

from fedsim.core.interfaces import Behaviour
from fedsim.core.randomness import generator
from fedsim.core.training import Claim, LocalWork, weights_of
from fedsim.core.types import Weights
from fedsim.defenses.integrity.proof.proof import proof_of, to_bytes
from fedsim.defenses.integrity.proof.seal import seal
from fedsim.integrity.binding import bound, commitment_to
from fedsim.integrity.keys import nonce_of, prover_keys
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
