"""Worthless data, committed to as asked: examples that the model will be sure of once it has seen them.

What it gains: little. It works until the model knows its blank images, then its steps are too short to
    matter and need not be taken. An attack that knows the strict verifier: commitment, order and copies are
    all as they should be.
Paper: none.
Assumes: nothing but the protocol; nobody can tell worthless data from valuable by a proof.
Caught by: intervals too short to tell work from none, as soon as it stops working. While it works it is
    accepted: it did train, on data that it has.
"""

import torch
from torch import Tensor

from fedsim.attacks.integrity.spoofing.fabricate import claimed
from fedsim.attacks.integrity.spoofing.one_batch import length_of
from fedsim.core.interfaces import Behaviour
from fedsim.core.settings import number
from fedsim.core.training import Batch, Claim, LocalWork, load_weights, sgd_step, weights_of
from fedsim.core.types import Task


class PlannedData(Behaviour):
    """Commits to blank images that differ in a few grey levels, all of one class, and trains on them."""

    def __init__(self, *, unseen: float = 1e-6) -> None:
        """Set how short a step must be (l2) not to be taken at all: the verifier's delta."""
        self.unseen = number("client.planned_data.unseen", unseen, least=0)

    def data(self, own: Batch, task: Task) -> Batch:
        """Commit to as many blank images as it has examples."""
        return blanks(torch.arange(len(own.labels)), task)

    def train(self, work: LocalWork) -> Claim:
        """Train on them while there is something to learn."""
        batches = [blanks(torch.tensor(places), work.task) for places in work.own_places()]
        load_weights(work.model, work.sent)
        way = [weights_of(work.model)]
        for batch in batches:
            if len(way) < 2 or length_of(way[-2], way[-1]) > self.unseen:
                sgd_step(work.model, batch, work.learning_rate)
            way.append(weights_of(work.model))
        return claimed(work, way, batches)


def blanks(places: Tensor, task: Task) -> Batch:
    """Return black images with their place written in grey levels of one, in binary."""
    images = torch.zeros(len(places), *task.input_shape)
    flat = images.view(len(places), -1)
    for bit in range(min(32, flat.shape[1])):
        flat[:, bit] = ((places >> bit) & 1) / 255
    return Batch(images=images, labels=torch.zeros(len(places), dtype=torch.int64))
