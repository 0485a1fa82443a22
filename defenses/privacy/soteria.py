"""Features that would betray the image are taken out of the last layer's gradient.

Paper: Sun et al., Soteria: Provable Defense against Privacy Leakage in Federated Learning from Representation
    Perspective (CVPR 2021).
"""

import torch
from torch import Generator, Tensor, nn

from fedsim.core.interfaces import Defense, LocalStep
from fedsim.core.settings import number
from fedsim.core.types import KnownDefense, Observation, Weights
from fedsim.models.last_linear import last_linear_name


class Soteria(Defense):
    """Sets the last layer's weight gradient to zero for a share of features: those that give most away."""

    sparse = True

    def __init__(self, *, rate: float = 0.4) -> None:
        """Set the share of features."""
        self.rate = number("defense.soteria.rate", rate, least=0, below=1)

    def on_gradient(self, gradient: Weights, step: LocalStep, generator: Generator) -> Weights:
        """Drop the columns of features with the smallest slope for their size."""
        name = last_linear_name(step.model, tuple(step.images.shape[1:]))
        slopes = feature_slopes(step.model, name, step.images)
        dropped = slopes.argsort()[: int(self.rate * len(slopes))]
        weight = gradient[f"{name}.weight"].clone()
        weight[:, dropped] = 0
        return {**gradient, f"{name}.weight": weight}

    def known(self, observation: Observation) -> KnownDefense:
        """Columns of zeros were left out."""
        return KnownDefense(zeros=True)


def feature_slopes(model: nn.Module, layer: str, images: Tensor) -> Tensor:
    """Return |d r_k / d x| / |r_k| of every feature r_k that enters a layer, added over the batch."""
    entering = list[Tensor]()
    handle = model.get_submodule(layer).register_forward_pre_hook(
        lambda module, inputs: entering.append(inputs[0])
    )
    images = images.detach().requires_grad_(True)
    try:
        with torch.enable_grad():
            model(images)
    finally:
        handle.remove()
    features, slopes = entering[0], list[Tensor]()
    for feature in range(features.shape[1]):
        (slope,) = torch.autograd.grad(features[:, feature].sum(), images, retain_graph=True)
        slopes.append((slope.flatten(1).norm(dim=1) / features[:, feature].abs().clamp(min=1e-12)).sum())
    return torch.stack(slopes).detach()
