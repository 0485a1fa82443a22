"""A copy of a model by its answers, claimed as a training on labels.

What it gains: the stolen model's performance from a proper start, in fewer steps than the labels would take.
Paper: Jia et al., Proof-of-Learning (S&P 2021), section IV-A (distillation-based spoofing).
Assumes: nobody does its steps again with the labels that it names.
Caught by: any recomputed step. Where it commits to the model's answers as labels, its proof is of an honest
    training on bought labels, and holds.
"""

import copy

import torch

from fedsim.attacks.integrity.spoofing.fabricate import claimed, wanted
from fedsim.core.interfaces import Behaviour
from fedsim.core.settings import number
from fedsim.core.training import Batch, Claim, LocalWork, load_weights, sgd_step, weights_of


class Distillation(Behaviour):
    """Trains on the answers of the model that it wants, and shows its own labels."""

    def __init__(self, *, speed: float = 4.0, strength: float = 1.0) -> None:
        """Set its learning rate, in units of the one asked for, and how far a poisoned model lies."""
        self.speed = number("client.distillation.speed", speed, above=0)
        self.strength = number("client.distillation.strength", strength, above=0)

    def train(self, work: LocalWork) -> Claim:
        """Follow the teacher."""
        teacher = copy.deepcopy(work.model)
        load_weights(teacher, wanted(work, self.strength))
        load_weights(work.model, work.sent)
        batches, way = work.own_batches(), [weights_of(work.model)]
        for batch in batches:
            with torch.no_grad():
                answers = teacher(batch.images).softmax(dim=1)
            taught = Batch(images=batch.images, labels=answers)
            sgd_step(work.model, taught, self.speed * work.learning_rate)
            way.append(weights_of(work.model))
        return claimed(work, way, batches)
