"""Another batch for the same update, found by search: trained on one batch, claimed for another.

What it gains: a trace in which examples that were used do not appear.
Paper: Thudi et al., On the Necessity of Auditable Algorithmic Definitions for Machine Unlearning (USENIX
    Security 2022): of many candidate batches, the one whose gradient is nearest.
Assumes: a verifier that forgives errors far above those of honest recomputation.
Caught by: any recomputed step, at a delta that was calibrated.
"""

import torch

from attacks.integrity.spoofing.fabricate import claimed
from fedsim.errors import FedsimError
from fedsim.interfaces import Behaviour
from fedsim.training import Batch, Claim, LocalWork, batch_gradient, load_weights, train_steps
from fedsim.types import Weights


class Greedy(Behaviour):
    """Trains on its batches and claims others: the nearest of some candidates, a share of it replaced."""

    def __init__(self, *, fraction: float = 1.0, candidates: int = 20) -> None:
        """Set the share of each batch to replace (at least one example), and how many candidates to try."""
        if not 0 <= fraction <= 1 or candidates < 1:
            raise FedsimError(
                "client.greedy: expected a fraction in [0, 1] and at least one candidate, "
                f"got {fraction} and {candidates}"
            )
        self.fraction = fraction
        self.candidates = candidates

    def train(self, work: LocalWork) -> Claim:
        """Train honestly, then look for batches that would have led the same way."""
        used = work.own_batches()
        trace = train_steps(
            work.model, work.sent, used, work.own_indices(), learning_rate=work.learning_rate, every=1
        )
        forged = [
            self._forge(work, weights, batch) for weights, batch in zip(trace.checkpoints, used, strict=False)
        ]
        return claimed(work, trace.checkpoints, forged)

    def _forge(self, work: LocalWork, weights: Weights, batch: Batch) -> Batch:
        """Return the candidate whose gradient is nearest to that of the batch."""
        load_weights(work.model, weights)
        wanted, _ = batch_gradient(work.model, batch.images, batch.labels)
        size = len(batch.labels)
        number = max(1, round(self.fraction * size))
        best, nearest = batch, float("inf")
        for _ in range(self.candidates):
            places = torch.randperm(size, generator=work.generator)[:number]
            drawn = torch.randint(len(work.owned), (number,), generator=work.generator)
            others = work.batch(work.owned[drawn])
            images, labels = batch.images.clone(), batch.labels.clone()
            images[places], labels[places] = others.images, others.labels
            gradient, _ = batch_gradient(work.model, images, labels)
            gap = sum(float((gradient[name] - wanted[name]).square().sum()) for name in wanted)
            if gap < nearest:
                best, nearest = Batch(images=images, labels=labels), gap
        return best
