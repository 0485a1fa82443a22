"""One batch for ever: the examples that the model is surest of, in every step.

What it gains: steps next to nothing, which need not even be computed once they are shorter than delta.
Paper: none; Jia et al., Proof-of-Learning (S&P 2021) let the prover choose its batches (getBatches).
Assumes: the verifier looks at a step's examples, and not at those of other steps.
Caught by: an order of the data that follows from the verifier's nonce, checked over all steps.
"""

import torch
from torch.nn import functional

from fedsim.attacks.integrity.spoofing.fabricate import claimed
from fedsim.core.interfaces import Behaviour
from fedsim.core.settings import number
from fedsim.core.training import Claim, LocalWork, load_weights, sgd_step, weights_of

LOOKED_AT = 2000  # of its examples


class OneBatch(Behaviour):
    """Takes all steps on the examples that it is surest of, or none where they are too short to be seen."""

    def __init__(self, *, unseen: float = 1e-6) -> None:
        """Set how short a step must be (l2) not to be taken at all: the verifier's delta."""
        self.unseen = number("client.one_batch.unseen", unseen, least=0)

    def train(self, work: LocalWork) -> Claim:
        """Choose the batch, and train on it."""
        load_weights(work.model, work.target or work.sent)
        chosen = surest(work)
        batch, places = work.batch(chosen), work.places(chosen)
        load_weights(work.model, work.sent)
        way = [weights_of(work.model)]
        for _ in range(work.steps):
            before = way[-1]
            if len(way) < 2 or length_of(way[-2], before) > self.unseen:
                sgd_step(work.model, batch, work.learning_rate)
            way.append(weights_of(work.model))
        return claimed(work, way, [batch] * work.steps, [places] * work.steps)


def surest(work: LocalWork) -> torch.Tensor:
    """Return the indices of a batch of own examples that the model has the least loss on."""
    some = work.owned[:LOOKED_AT]
    with torch.no_grad():
        seen = work.batch(some)
        losses = functional.cross_entropy(work.model(seen.images), seen.labels, reduction="none")
    return some[losses.cpu().argsort()[: len(work.indices(0))]]


def length_of(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Return the l2 distance of two sets of weights."""
    return float(torch.stack([(other[name] - one[name]).norm() for name in one]).norm())
