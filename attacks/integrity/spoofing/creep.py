"""Honest steps, each bent by a little less than the error that is allowed, always the same way.

What it gains: what the tolerance leaves: a drift of delta an interval towards weights of its choice. An
    attack that knows the verifier's delta, and is accepted by it.
Paper: Zhang et al., "Adversarial Examples" for Proof-of-Learning (S&P 2022) and Fang et al. (2023) live
    on a delta that is too wide.
Assumes: a delta that is worth it.
Caught by: nothing; a calibrated delta makes it pointless (1e-6 an interval, where a way is several long).
"""

import torch

from fedsim.attacks.integrity.spoofing.fabricate import claimed, wanted
from fedsim.core.interfaces import Behaviour
from fedsim.core.settings import number
from fedsim.core.training import Claim, LocalWork, load_weights, sgd_step, weights_of


class Creep(Behaviour):
    """Trains honestly, and moves each checkpoint by most of delta towards the weights that it wants."""

    def __init__(self, *, delta: float = 1e-6, share_used: float = 0.9, strength: float = 1.0) -> None:
        """Set the verifier's delta (l2), how much of it is used, and how far a poisoned model lies."""
        self.delta = number("client.creep.delta", delta, least=0)
        self.share_used = number("client.creep.share_used", share_used, above=0, most=1)
        self.strength = number("client.creep.strength", strength, above=0)

    def train(self, work: LocalWork) -> Claim:
        """Train, and lean."""
        target, every = wanted(work, self.strength), work.every or 1
        load_weights(work.model, work.sent)
        batches, way = work.own_batches(), [weights_of(work.model)]
        for step, batch in enumerate(batches, start=1):
            sgd_step(work.model, batch, work.learning_rate)
            now = weights_of(work.model)
            if step % every == 0 or step == work.steps:
                gaps = {name: target[name] - tensor for name, tensor in now.items()}
                far = float(torch.stack([gap.norm() for gap in gaps.values()]).norm())
                lean = self.share_used * self.delta / max(far, 1e-30)
                now = {name: tensor + lean * gaps[name] for name, tensor in now.items()}
                load_weights(work.model, now)
            way.append(now)
        return claimed(work, way, batches)
