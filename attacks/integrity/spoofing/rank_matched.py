"""Stolen weights dressed as a random initialisation: a fresh draw, put into their order.

What it gains: a proof of stolen weights. The first checkpoint holds exactly the values of a fresh draw, so no
    test of distributions sees anything, and it is nearly as good a model as the stolen one; every step is
    true.
Paper: none; an answer to Jia et al., Proof-of-Learning (S&P 2021), section V-D4 (Kolmogorov-Smirnov).
Assumes: the prover chooses its random initialisation.
Caught by: an initialisation that follows from the prover's name and the verifier's nonce, bit for bit.
"""

import torch
from torch import Tensor

from fedsim.attacks.integrity.spoofing.fabricate import from_another_start, wanted
from fedsim.core.interfaces import Behaviour
from fedsim.core.settings import number
from fedsim.core.training import Claim, LocalWork


class RankMatched(Behaviour):
    """Begins at the values that were sent in the order of the weights that it wants, and trains honestly."""

    def __init__(self, *, strength: float = 1.0) -> None:
        """Set how far a poisoned model lies, in units of a round's update; stolen weights need none."""
        self.strength = number("client.rank_matched.strength", strength, above=0)

    def train(self, work: LocalWork) -> Claim:
        """Put the values in order, and take true steps from there."""
        target = wanted(work, self.strength)
        return from_another_start(work, {n: rank_matched(t, target[n]) for n, t in work.sent.items()})


def rank_matched(values: Tensor, like: Tensor) -> Tensor:
    """Return the values in the rank order of other ones: the smallest where that is smallest, and so on."""
    found = torch.empty_like(values).flatten()
    found[like.flatten().argsort()] = values.flatten().sort().values
    return found.view_as(values)
