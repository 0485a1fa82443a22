"""Gaussian noise on everything that leaves the client.

Paper: Zhu et al., Deep Leakage from Gradients (NeurIPS 2019), section 5; Ma et al. (ICLR 2023), figure 5.
"""

import torch
from torch import Generator, Tensor

from fedsim.errors import FedsimError
from fedsim.interfaces import Defense
from fedsim.types import Kind, Weights


class Noise(Defense):
    """Adds Gaussian noise of deviation `sigma` to every entry of the gradient or update."""

    def __init__(self, *, sigma: float = 0.01, relative: bool = False) -> None:
        """Set the deviation; relative: in units of each tensor's root mean square."""
        if not sigma >= 0:
            raise FedsimError(f"defense.noise.sigma: expected a number of at least 0, got {sigma}")
        self.sigma = sigma
        self.relative = relative

    def on_reply(self, reply: Weights, kind: Kind, generator: Generator) -> Weights:
        """Add fresh noise."""
        noisy = dict[str, Tensor]()
        for name, tensor in reply.items():
            size = float(tensor.double().square().mean().sqrt()) if self.relative else 1.0
            drawn = torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
            noisy[name] = tensor + self.sigma * size * drawn
        return noisy
