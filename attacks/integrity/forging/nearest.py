"""Each unwanted example gives way to the nearest of its own class.

What it gains: a trace without these examples, that looks like the real one.
Paper: Zhang et al., Verification of Machine Unlearning is Fragile (ICML 2024).
Assumes: data sets with near twins in a class, such as MNIST.
Caught by: any recomputed step, at a delta that was calibrated.
"""

import torch

from fedsim.attacks.integrity.forging.replacement import expect_examples, replaced, targets
from fedsim.core.challenges import Challenge
from fedsim.core.interfaces import Forgery
from fedsim.core.settings import whole
from fedsim.core.training import Batch


class Nearest(Forgery):
    """The nearest other example of the same class, by pixels or unequal tokens; none is used twice."""

    pixels = "uint8"
    tokens = True

    def __init__(self, *, examples: int = 5000) -> None:
        """Set among how many examples at hand to look."""
        self.examples = whole("forgery.examples", examples)

    def forge(self, challenge: Challenge) -> Batch:
        """Replace each unwanted example by its nearest neighbour."""
        number = expect_examples(challenge)
        drawn = torch.randperm(len(challenge.owned), generator=challenge.generator)
        others = challenge.examples(challenge.owned[drawn[: max(self.examples, number)]])
        places = targets(challenge)
        mine, labels = challenge.batch.images[places], challenge.batch.labels[places]
        if mine.is_floating_point():
            distances = torch.cdist(mine.flatten(1).float(), others.images.flatten(1).float())
        else:
            distances = (mine[:, None] != others.images[None]).sum(dim=2).float()
        if labels.ndim == 1:  # next tokens are no classes
            distances[labels[:, None] != others.labels[None]] += 1e6  # only where a class is used up
        chosen = list[int]()
        for row in distances:
            row[chosen] = float("inf")
            chosen.append(int(row.argmin()))
        return replaced(challenge, Batch(images=others.images[chosen], labels=others.labels[chosen]))
