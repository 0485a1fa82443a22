"""The few weights that make a stolen model, hidden in a fresh draw.

What it gains: a head start that tests of distributions do not see: only the largest weights of the stolen
    model count, and they get the largest values of the draw, with their own signs.
Paper: Jia et al., Proof-of-Learning (S&P 2021), section VII-B3b holds that pruned weights fail
    Kolmogorov-Smirnov; with values of a draw they pass.
Assumes: the prover chooses its random initialisation.
Caught by: an initialisation that follows from the prover's name and the verifier's nonce, bit for bit.
"""

import torch
from torch import Tensor

from fedsim.attacks.integrity.spoofing.fabricate import from_another_start, wanted
from fedsim.core.interfaces import Behaviour
from fedsim.core.settings import number
from fedsim.core.training import Claim, LocalWork


class Pruned(Behaviour):
    """Begins at a draw whose largest values stand where the wanted weights are largest; trains honestly."""

    def __init__(self, *, share_kept: float = 0.3, strength: float = 1.0) -> None:
        """Set the share of weights that are kept, and how far a poisoned model lies (in rounds' updates)."""
        self.share_kept = number("client.pruned.share_kept", share_kept, above=0, most=1)
        self.strength = number("client.pruned.strength", strength, above=0)

    def train(self, work: LocalWork) -> Claim:
        """Hide the weights, and take true steps from there."""
        target = wanted(work, self.strength)
        start = {n: hidden(t, target[n], self.share_kept) for n, t in work.sent.items()}
        return from_another_start(work, start)


def hidden(values: Tensor, like: Tensor, share: float) -> Tensor:
    """Return the values of a draw, the largest where `like` is largest and with its signs there."""
    flat, wanted_order = values.flatten(), like.flatten().abs().argsort(descending=True)
    number = int(share * len(flat))
    by_size = flat.abs().argsort(descending=True)
    kept, found = wanted_order[:number], torch.empty_like(flat)
    found[wanted_order[number:]] = flat[by_size[number:].sort().values]  # the others as they were drawn
    found[kept] = flat[by_size[:number]].abs() * torch.sign(like.flatten()[kept])
    return found.view_as(values)
