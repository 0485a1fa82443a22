"""Noise on everything that leaves the client.

Paper: Zhu et al., Deep Leakage from Gradients (NeurIPS 2019), section 5; Ma et al. (ICLR 2023), figure 5.
"""

import math

import torch
from torch import Generator, Tensor

from fedsim.core.interfaces import Defense
from fedsim.core.settings import number, one_of, switch
from fedsim.core.types import Kind, KnownDefense, Observation, Weights

DISTRIBUTIONS = ("gaussian", "laplace")


class Noise(Defense):
    """Adds Gaussian or Laplace noise of deviation `sigma` to every entry of the gradient or update."""

    bits = 32.0  # noise takes whole floats, whatever was rounded before

    def __init__(
        self, *, sigma: float = 0.01, distribution: str = "gaussian", relative: bool = False
    ) -> None:
        """Set the deviation; relative: in units of each tensor's root mean square."""
        self.sigma = number("defense.noise.sigma", sigma, least=0)
        self.distribution = one_of("defense.noise.distribution", distribution, DISTRIBUTIONS)
        self.relative = switch("defense.noise.relative", relative)
        fixed = self.distribution == "gaussian" and not self.relative
        self.gaussian = self.sigma if fixed else 0.0

    def on_reply(self, reply: Weights, kind: Kind, generator: Generator) -> Weights:
        """Add fresh noise."""
        noisy = dict[str, Tensor]()
        for name, tensor in reply.items():
            size = float(tensor.double().square().mean().sqrt()) if self.relative else 1.0
            noisy[name] = tensor + self.sigma * size * self._draw(tensor, generator)
        return noisy

    def known(self, observation: Observation) -> KnownDefense:
        """The deviation of every entry's noise."""
        return KnownDefense(relative_noise=self.sigma) if self.relative else KnownDefense(noise=self.sigma)

    def _draw(self, like: Tensor, generator: Generator) -> Tensor:
        """Draw with a deviation of one."""
        if self.distribution == "gaussian":
            return torch.randn(like.shape, generator=generator, dtype=like.dtype)
        flat = torch.rand(like.shape, generator=generator, dtype=torch.float64) - 0.5
        drawn = -flat.sign() * torch.log1p(-2 * flat.abs().clamp(max=0.5 - 1e-12)) / math.sqrt(2)
        return drawn.to(like.dtype)
