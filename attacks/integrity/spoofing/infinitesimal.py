"""Honest steps of a learning rate so small that any two checkpoints pass for a step.

What it gains: a valid proof for weights that were hardly trained.
Paper: Fang et al., Proof-of-Learning is Currently More Broken Than You Think (EuroS&P 2023).
Assumes: the verifier takes any learning rate.
Caught by: a pinned learning rate.
"""

import dataclasses

from fedsim.core.interfaces import Behaviour
from fedsim.core.settings import number
from fedsim.core.training import Claim, LocalWork, honest


class Infinitesimal(Behaviour):
    """Trains with next to no learning rate, and says so."""

    def __init__(self, *, learning_rate: float = 1e-9) -> None:
        """Set the learning rate."""
        self.learning_rate = number("client.infinitesimal.learning_rate", learning_rate, above=0)

    def train(self, work: LocalWork) -> Claim:
        """Take the steps, each of no size."""
        return honest(dataclasses.replace(work, learning_rate=self.learning_rate))
