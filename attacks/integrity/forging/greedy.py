"""Another batch for the same update, found by search among examples at hand.

What it gains: a trace in which examples that were used do not appear.
Paper: Thudi et al., On the Necessity of Auditable Algorithmic Definitions for Machine Unlearning (USENIX
    Security 2022): of many candidate batches, the one whose gradient is nearest.
Assumes: a verifier that forgives errors far above those of honest recomputation.
Caught by: any recomputed step, at a delta that was calibrated.
"""

import torch

from fedsim.attacks.integrity.forging.replacement import expect_examples, gap, replaced
from fedsim.core.challenges import Challenge
from fedsim.core.interfaces import Forgery
from fedsim.core.settings import whole
from fedsim.core.training import Batch, batch_gradient


class Greedy(Forgery):
    """Of some random replacements of the unwanted examples, the one whose gradient is nearest."""

    pixels = "uint8"
    tokens = True

    def __init__(self, *, candidates: int = 20) -> None:
        """Set how many candidate batches to try; each costs the gradient of a batch."""
        self.candidates = whole("forgery.candidates", candidates)

    def forge(self, challenge: Challenge) -> Batch:
        """Draw replacements and keep the best."""
        number = expect_examples(challenge)
        wanted, _ = batch_gradient(challenge.model, challenge.batch.images, challenge.batch.labels)
        best, nearest = challenge.batch, float("inf")
        for _ in range(self.candidates):
            drawn = torch.randperm(len(challenge.owned), generator=challenge.generator)[:number]
            batch = replaced(challenge, challenge.examples(challenge.owned[drawn]))
            gradient, _ = batch_gradient(challenge.model, batch.images, batch.labels)
            if (distance := gap(gradient, wanted)) < nearest:
                best, nearest = batch, distance
        return best
