"""Clients send the sign of every number, at one size a tensor.

Paper: Bernstein et al., signSGD: Compressed Optimisation for Non-Convex Problems (ICML 2018).
"""

from torch import Generator

from fedsim import Defense
from fedsim.core.types import Kind, Weights


class Signs(Defense):
    """Signs alone leave the client, scaled to each tensor's mean magnitude."""

    bits = 1.0

    def __init__(self, *, scaled: bool = True) -> None:
        """Choose whether the mean magnitude goes with them."""
        self.scaled = scaled

    def on_reply(self, reply: Weights, kind: Kind, generator: Generator) -> Weights:
        """Keep the signs."""
        return {
            name: tensor.sign() * (tensor.abs().mean() if self.scaled else 1)
            for name, tensor in reply.items()
        }
