"""A jump that is not the largest: a true step at a place where steps are enormous hides it.

What it gains: any weights at the end, for two false intervals. From weights turned around and scaled up, one
    true interval is longer than the jumps there and back, so the largest updates are all true.
Paper: none; Jia et al., Proof-of-Learning (S&P 2021), section VII-C1 warns of it and does not try it.
Assumes: the verifier does the largest updates again, and few others.
Caught by: enough random intervals; the norms of checkpoints; the loss at checkpoints.
"""

import itertools
import math

import torch

from fedsim.attacks.integrity.spoofing.fabricate import claimed, wanted
from fedsim.core.interfaces import Behaviour
from fedsim.core.settings import number
from fedsim.core.training import Batch, Claim, LocalWork, load_weights, sgd_step, weights_of
from fedsim.core.types import Weights

SCALES = (-2, -3, -4, -6, -8, -12, -16, 4, 8)  # of the weights, in the order in which they are tried


class HiddenJump(Behaviour):
    """Trains honestly but for the last three intervals: a jump, a true interval of great length, a jump."""

    def __init__(self, *, strength: float = 1.0) -> None:
        """Set how far a poisoned model lies, in units of a round's update; stolen weights need none."""
        self.strength = number("client.hidden_jump.strength", strength, above=0)

    def train(self, work: LocalWork) -> Claim:
        """Work up to the jump, and land on the target."""
        target, every = wanted(work, self.strength), work.every or 1
        intervals = math.ceil(work.steps / every)
        load_weights(work.model, work.sent)
        batches, way = work.own_batches(), list[Weights]([weights_of(work.model)])
        for batch in batches[: max(0, intervals - 3) * every]:
            sgd_step(work.model, batch, work.learning_rate)
            way.append(weights_of(work.model))
        if intervals >= 3:
            true = batches[len(way) - 1 + every : len(way) - 1 + 2 * every]
            away, there = _detour(work, way[-1], target, true)
            way += [away] * every + [there] * every
        way += [target] * (work.steps + 1 - len(way))
        return claimed(work, way, batches)


def _detour(
    work: LocalWork, start: Weights, target: Weights, batches: list[Batch]
) -> tuple[Weights, Weights]:
    """Return where a true interval begins and ends that is longer than the way there and from there."""
    best, found = -1.0, (start, target)
    for scale, base in itertools.product(SCALES, (start, target)):
        away = {name: scale * tensor for name, tensor in base.items()}
        load_weights(work.model, away)
        for batch in batches:
            sgd_step(work.model, batch, work.learning_rate)
        there = weights_of(work.model)
        jumps = max(_length(start, away), _length(there, target))
        ratio = _length(away, there) / jumps
        if math.isfinite(ratio) and ratio > best:
            best, found = ratio, (away, there)
        if best > 1:
            break
    return found


def _length(one: Weights, other: Weights) -> float:
    return float(torch.stack([(other[name] - one[name]).norm() for name in one]).norm())
