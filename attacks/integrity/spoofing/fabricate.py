"""Traces that were never trained: what several spoofs are made of."""

from collections.abc import Sequence

import torch

from fedsim.core.training import Batch, Claim, LocalWork, load_weights, sgd_step, trace_of, weights_of
from fedsim.core.types import Weights


def claimed(
    work: LocalWork,
    every_step: Sequence[Weights],
    batches: Sequence[Batch],
    places: Sequence[tuple[int, ...]] | None = None,
) -> Claim:
    """Claim that these weights, one before each step and one at the end, came of these batches.

    places: of the examples in its data; None: those that were asked for.
    """
    last = len(every_step) - 1
    update = {name: every_step[last][name] - sent for name, sent in work.sent.items()}
    if work.kind == "gradient":  # that would have led there
        update = {name: tensor / -work.learning_rate for name, tensor in update.items()}
    if work.every is None:
        return Claim(update=update, batches=tuple(batches))
    shown = [every_step[step] for step in (*range(0, last, work.every), last)]
    if work.kind == "gradient":
        shown[-1] = update
    return Claim(update=update, batches=tuple(batches), trace=trace_of(work, shown, batches, places))


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


def wanted(work: LocalWork, strength: float) -> Weights:
    """Return the weights that a cheat wants to end with: stolen ones, or a poisoned model.

    The poison is what training would do, turned around and `strength` times as long, by one step's gradient.
    """
    if work.target is not None:
        return work.target
    load_weights(work.model, work.sent)
    sgd_step(work.model, work.batch(work.indices(0)), work.learning_rate)
    there = weights_of(work.model)
    far = strength * work.steps
    return {name: sent - far * (there[name] - sent) for name, sent in work.sent.items()}


def from_another_start(work: LocalWork, start: Weights) -> Claim:
    """Train honestly from other weights than those that were sent, and claim that they were."""
    load_weights(work.model, start)
    batches, way = work.own_batches(), [weights_of(work.model)]
    for batch in batches:
        sgd_step(work.model, batch, work.learning_rate)
        way.append(weights_of(work.model))
    return claimed(work, way, batches)
