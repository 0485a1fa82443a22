"""A client that takes part without training.

What it gains: the global model for nothing. It sends back what it got, with noise that looks like work.
Paper: Fraboni et al., Free-rider Attacks on Model Aggregation in Federated Learning (AISTATS 2021).
Assumes: nobody does its steps again.
Caught by: any recomputed step.
"""

import torch

from fedsim.attacks.integrity.spoofing.fabricate import claimed, moved
from fedsim.core.interfaces import Behaviour
from fedsim.core.settings import number
from fedsim.core.training import Claim, LocalWork


class FreeRider(Behaviour):
    """Sends noise as its update, and a straight line from the weights sent to it as its trace."""

    def __init__(self, *, noise: float = 0.01) -> None:
        """Set the deviation of the noise on every weight; 0: it sends back what it got."""
        self.noise = number("client.free_rider.noise", noise, least=0)

    def train(self, work: LocalWork) -> Claim:
        """Do nothing, and claim everything."""
        end = {
            name: tensor + self.noise * torch.randn(tensor.shape, generator=work.generator)
            for name, tensor in work.sent.items()
        }
        way = [moved(work.sent, end, step / work.steps) for step in range(work.steps)]
        return claimed(work, [*way, end], work.own_batches())
