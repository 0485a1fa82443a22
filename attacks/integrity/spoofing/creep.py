"""Honest steps, each bent by a little less than the error that is allowed, always the same way.

What it gains: what the tolerance leaves: a drift of delta an interval towards weights of its choice. It does
    all the work, so it saves none.
Paper: Zhang et al., "Adversarial Examples" for Proof-of-Learning (S&P 2022) and Fang et al. (2023) live
    on a delta that is too wide.
Assumes: a delta that is worth it.
Caught by: bits, where it names a machine like the verifier's; its straight way (rounding has none) from seven
    intervals on. One that hides its machine and wavers as rounding does is accepted; its drift is then
    2.5 delta times the root of the number of intervals (1e-5 in a way of length one), unless machines=same.
"""

import math
from dataclasses import replace

import torch

from fedsim.attacks.integrity.spoofing.fabricate import claimed, wanted
from fedsim.core.interfaces import Behaviour
from fedsim.core.settings import number, switch
from fedsim.core.training import Claim, LocalWork, load_weights, sgd_step, weights_of
from fedsim.core.types import Weights

STRAIGHT = 2.5  # of the verifier: how much further than by chance all bends may lead


class Creep(Behaviour):
    """Trains honestly, and moves each checkpoint by most of delta towards the weights that it wants."""

    def __init__(
        self,
        *,
        delta: float = 1e-6,
        share_used: float = 0.9,
        strength: float = 1.0,
        wavers: bool = False,
        hides_machine: bool = False,
    ) -> None:
        """Set the verifier's delta (l2), how much of it is used, and how far a poisoned model lies.

        wavers: lean as much as chance would, and elsewhere at random, so that the way does not look straight;
        hides_machine: say that it was computed on a machine that nobody has.
        """
        self.delta = number("client.creep.delta", delta, least=0)
        self.share_used = number("client.creep.share_used", share_used, above=0, most=1)
        self.strength = number("client.creep.strength", strength, above=0)
        self.wavers = switch("client.creep.wavers", wavers)
        self.hides_machine = switch("client.creep.hides_machine", hides_machine)

    def train(self, work: LocalWork) -> Claim:
        """Train, and lean."""
        target, every = wanted(work, self.strength), work.every or 1
        load_weights(work.model, work.sent)
        batches, way = work.own_batches(), [weights_of(work.model)]
        for step, batch in enumerate(batches, start=1):
            sgd_step(work.model, batch, work.learning_rate)
            now = weights_of(work.model)
            if step % every == 0 or step == work.steps:
                bend = self._bend(work, {name: target[name] - tensor for name, tensor in now.items()})
                now = {name: tensor + bend[name] for name, tensor in now.items()}
                load_weights(work.model, now)
            way.append(now)
        done = claimed(work, way, batches)
        return replace(done, machine="a machine that nobody has") if self.hides_machine else done

    def _bend(self, work: LocalWork, gaps: Weights) -> Weights:
        """Return what to add to a checkpoint: as long as may be, towards the target, all or in part."""
        most, towards = self.share_used * self.delta, _unit(gaps)
        if not self.wavers:
            return {name: most * tensor for name, tensor in towards.items()}
        aside = _unit({n: torch.randn(t.shape, generator=work.generator) for n, t in gaps.items()})
        intervals = math.ceil(work.steps / (work.every or 1))
        straight = min(1.0, 0.9 * STRAIGHT / math.sqrt(intervals))
        rest = math.sqrt(1 - straight**2)
        return {name: most * (straight * towards[name] + rest * aside[name]) for name in gaps}


def _unit(weights: Weights) -> Weights:
    far = float(torch.stack([tensor.norm() for tensor in weights.values()]).norm())
    return {name: tensor / max(far, 1e-30) for name, tensor in weights.items()}
