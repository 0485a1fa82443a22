"""Traces that were never trained: what several spoofs are made of."""

from collections.abc import Sequence

import torch

from fedsim.core.training import Batch, Claim, LocalWork, trace_of
from fedsim.core.types import Weights


def claimed(work: LocalWork, every_step: Sequence[Weights], batches: Sequence[Batch]) -> Claim:
    """Claim that these weights, one before each step and one at the end, came of these batches."""
    last = len(every_step) - 1
    update = {name: every_step[last][name] - sent for name, sent in work.sent.items()}
    if work.every is None:
        return Claim(update=update, batches=tuple(batches))
    shown = [every_step[step] for step in (*range(0, last, work.every), last)]
    return Claim(update=update, batches=tuple(batches), trace=trace_of(work, shown, batches))


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
