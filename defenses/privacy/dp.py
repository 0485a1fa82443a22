"""Differentially private local steps: every example's gradient is clipped, their sum gets noise.

Paper: Abadi et al., Deep Learning with Differential Privacy (CCS 2016). Epsilon by the accountants of Opacus.
"""

import math

import torch
from torch import Generator, Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Defense, LocalStep
from fedsim.core.settings import number, one_of
from fedsim.core.types import KnownDefense, Observation, Weights

ACCOUNTANTS = ("rdp", "prv")
ROOM = 2**26  # entries of per-example gradients that are held at once


class DP(Defense):
    """Clips each example's gradient to `max_norm`; the sum gets Gaussian noise of `sigma` times that."""

    def __init__(
        self, *, max_norm: float = 1.0, sigma: float = 1.0, delta: float = 1e-5, accountant: str = "rdp"
    ) -> None:
        """Set the bound, the noise in units of it, and for which delta the run's epsilon is given."""
        self.max_norm = number("defense.dp.max_norm", max_norm, above=0)
        self.sigma = number("defense.dp.sigma", sigma, least=0)
        self.delta = number("defense.dp.delta", delta, above=0, below=1)
        self.accountant = one_of("defense.dp.accountant", accountant, ACCOUNTANTS)

    def on_gradient(self, gradient: Weights, step: LocalStep, generator: Generator) -> Weights:
        """Return the noisy mean of clipped per-example gradients in place of the batch-mean gradient."""
        total = clipped_sum(step.model, step.images, step.labels, self.max_norm)
        noisy, size = dict[str, Tensor](), step.expected or len(step.images)
        for name, tensor in total.items():
            drawn = torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
            noisy[name] = (tensor + self.sigma * self.max_norm * drawn.to(tensor.device)) / size
        return noisy

    def known(self, observation: Observation) -> KnownDefense:
        """The deviation of the noise on a mean gradient, or on an update of steps that each had their own."""
        if observation.num_examples is None:
            return KnownDefense()
        steps, rate = observation.local_steps or 1, observation.learning_rate
        noise = self.sigma * self.max_norm * steps / observation.num_examples  # of one step's gradient
        if observation.kind == "gradient":
            return KnownDefense(noise=noise)
        return KnownDefense(noise=noise * rate * math.sqrt(steps) if rate else 0.0)

    def epsilon(self, *, sample_rate: float, steps: int, replaced: bool = False) -> float | None:
        """Return epsilon after so many local steps of batches that hold this share of a client's images.

        Another example in place of one moves the sum by twice the bound, which is as half the noise.
        """
        if self.sigma == 0:
            return None
        from opacus.accountants import create_accountant  # seconds to import

        accountant = create_accountant(self.accountant)
        accountant.history = [(self.sigma / 2 if replaced else self.sigma, sample_rate, steps)]
        return float(accountant.get_epsilon(delta=self.delta))


def clipped_sum(model: nn.Module, images: Tensor, labels: Tensor, max_norm: float) -> dict[str, Tensor]:
    """Return the sum over examples of their gradients, each scaled down to at most this norm."""
    of_batch = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    if any(isinstance(module, of_batch) and module.training for module in model.modules()):
        raise FedsimError(
            "defense.dp: BatchNorm on the private batch mixes examples, so no gradient is one example's. "
            "Remedy: federation.batch_norm=eval."
        )
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}

    def loss(now: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        return functional.cross_entropy(functional_call(model, now, (image[None],)), label[None])

    each = vmap(grad(loss), in_dims=(None, 0, 0))
    chunk = max(1, ROOM // sum(tensor.numel() for tensor in weights.values()))
    total = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
    for some, theirs in zip(torch.split(images, chunk), torch.split(labels, chunk), strict=True):
        gradients = each(weights, some, theirs)
        norms = torch.stack([tensor.flatten(1).norm(dim=1) for tensor in gradients.values()]).norm(dim=0)
        scale = (max_norm / norms.clamp(min=1e-30)).clamp(max=1)
        for name, tensor in gradients.items():
            total[name] += torch.einsum("n,n...->...", scale, tensor)
    return total
