"""Gaussian noise on everything that leaves the client.

Paper: Zhu et al., Deep Leakage from Gradients (NeurIPS 2019), section 5; Ma et al. (ICLR 2023), figure 5.
"""

import torch
from torch import Generator

from fedsim.errors import FedsimError
from fedsim.interfaces import Defense
from fedsim.types import Kind, Weights


class Noise(Defense):
    """Adds Gaussian noise of deviation `sigma` to every entry of the gradient or update."""

    def __init__(self, *, sigma: float = 0.01) -> None:
        if not sigma >= 0:
            raise FedsimError(f"defense.noise.sigma: expected a number of at least 0, got {sigma}")
        self.sigma = sigma

    def on_reply(self, reply: Weights, kind: Kind, generator: Generator) -> Weights:
        """Add fresh noise."""
        return {
            name: tensor + self.sigma * torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
            for name, tensor in reply.items()
        }
