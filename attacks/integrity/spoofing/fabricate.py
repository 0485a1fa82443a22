"""Traces that were never trained: what several spoofs are made of."""

from collections.abc import Sequence

import torch

from fedsim.core.training import Batch, Claim, LocalWork, Trace, batch_digest, claim_of
from fedsim.core.types import Weights


def claimed(work: LocalWork, every_step: Sequence[Weights], batches: Sequence[Batch]) -> Claim:
    """Claim that these weights, one before each step and one at the end, came of these batches."""
    last = len(every_step) - 1
    places = [*range(0, last, work.every), last]
    trace = Trace(
        checkpoints=tuple(every_step[place] for place in places),
        every=work.every,
        learning_rate=work.learning_rate,
        indices=work.own_indices(),
        digests=tuple(batch_digest(batch) for batch in batches),
    )
    return claim_of(work.sent, trace, batches)


def moved(weights: Weights, towards: Weights, share: float) -> Weights:
    """Return weights a share of the way to others."""
    return {name: tensor + share * (towards[name] - tensor) for name, tensor in weights.items()}


def shifted(work: LocalWork, like: Weights, size: float) -> Weights:
    """Return the weights sent, moved at random by `size` times the length of each tensor of `like`."""
    found = {}
    for name, tensor in work.sent.items():
        drawn = torch.randn(tensor.shape, generator=work.generator)
        found[name] = tensor + size * float(like[name].norm()) * drawn / drawn.norm().clamp(min=1e-30)
    return found
