"""What images look like: penalties that steer gradient matching where the gradient leaves a choice.

A prior is tied to a model once and then judges images in the model's normalised units, shaped
(candidates, K, C, H, W): several candidates for the same batch may be searched together. It returns its value
and what to differentiate: a scalar with a graph, or the images with the derivative worked out by hand.
"""

from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsim.core.settings import number
from fedsim.core.types import Task

Term = tuple[float, Tensor, Tensor | None]  # value; an output, and the derivative of the value by it


class Penalty(Protocol):
    """A prior at work."""

    def __call__(self, images: Tensor, done: float = 1.0) -> Term:
        """Judge candidates (candidates, K, C, H, W); done: the share of the search that is over."""


class Prior:
    """A penalty on candidate images."""

    def on(self, model: nn.Module, task: Task) -> Penalty:
        """Return the weighted penalty; it is asked right after `model` has seen the images."""
        raise NotImplementedError


class TotalVariation(Prior):
    """Neighbouring pixels differ little: mean absolute difference along rows and columns.

    Paper: Geiping et al., Inverting Gradients (NeurIPS 2020).
    """

    def __init__(self, *, weight: float = 1e-3) -> None:
        """Set the weight of the penalty."""
        self.weight = number("attack.priors.weight", weight, least=0)

    def on(self, model: nn.Module, task: Task) -> Penalty:
        """Return the total variation."""

        def penalty(
            images: Tensor, done: float = 1.0
        ) -> Term:  # by hand: a fifth of what a graph of slices costs
            with torch.no_grad():
                slope, value = torch.zeros_like(images), 0.0
                for axis in (-1, -2):
                    length = images.shape[axis] - 1
                    gaps = images.narrow(axis, 1, length) - images.narrow(axis, 0, length)
                    factor = self.weight / max(1, gaps.numel())
                    value += factor * float(torch.linalg.vector_norm(gaps, 1))
                    signs = gaps.sign_().mul_(factor)
                    slope.narrow(axis, 1, length).add_(signs)
                    slope.narrow(axis, 0, length).sub_(signs)
            return value, images, slope

        return penalty


class Length(Prior):
    """Images are not too bright or dark: mean square in normalised units (l2).

    Paper: Yin et al., See through Gradients (CVPR 2021).
    """

    def __init__(self, *, weight: float = 1e-6) -> None:
        """Set the weight of the penalty."""
        self.weight = number("attack.priors.weight", weight, least=0)

    def on(self, model: nn.Module, task: Task) -> Penalty:
        """Return the mean square."""
        return lambda images, done=1.0: _graph(self.weight * images.square().mean())


class BatchNormStatistics(Prior):
    """The batch has the statistics that the BatchNorm layers ran on (deep inversion).

    It needs a model whose running statistics were trained (model.checkpoint); fresh ones say nothing.
    Paper: Yin et al., See through Gradients (CVPR 2021).
    """

    def __init__(self, *, weight: float = 0.1) -> None:
        """Set the weight of the penalty."""
        self.weight = number("attack.priors.weight", weight, least=0)

    def on(self, model: nn.Module, task: Task) -> Penalty:
        """Return the squared distance of the statistics entering each BatchNorm layer from its own."""
        distances = list[Tensor]()

        def compare(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            assert isinstance(layer, nn.modules.batchnorm._BatchNorm)
            if layer.running_mean is None or layer.running_var is None:
                return
            entering = inputs[0].transpose(0, 1).flatten(1)
            mean_gap = (entering.mean(dim=1) - layer.running_mean).square().sum()
            distances.append(
                mean_gap + (entering.var(dim=1, unbiased=False) - layer.running_var).square().sum()
            )

        layers = [layer for layer in model.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
        for layer in layers:
            layer.register_forward_pre_hook(compare)  # on the attack's own copy of the model

        def penalty(images: Tensor, done: float = 1.0) -> Term:
            if not distances:
                return 0.0, images, torch.zeros_like(images)
            total = torch.stack(distances).mean()
            distances.clear()
            return _graph(self.weight * total)

        return penalty


class GroupConsistency(Prior):
    """Candidates for the same batch agree: squared distance of each from their mean.

    Paper: Yin et al., See through Gradients (CVPR 2021), without its image registration.
    """

    def __init__(self, *, weight: float = 0.01) -> None:
        """Set the weight of the penalty; it acts with attack.candidates of at least 2."""
        self.weight = number("attack.priors.weight", weight, least=0)

    def on(self, model: nn.Module, task: Task) -> Penalty:
        """Return the mean squared distance from the candidates' mean image."""
        return lambda images, done=1.0: _graph(
            self.weight * (images - images.mean(dim=0, keepdim=True)).square().mean()
        )


class Orthogonality(Prior):
    """The images of a batch differ from each other: mean squared cosine between them.

    Paper: Qian et al., Minimal Model Structure Analysis for Input Reconstruction (2020).
    """

    def __init__(self, *, weight: float = 0.1) -> None:
        """Set the weight of the penalty."""
        self.weight = number("attack.priors.weight", weight, least=0)

    def on(self, model: nn.Module, task: Task) -> Penalty:
        """Return the mean squared cosine of all pairs of a batch."""

        def penalty(images: Tensor, done: float = 1.0) -> Term:
            rows = functional.normalize(images.flatten(2), dim=2)
            others = ~torch.eye(images.shape[1], dtype=torch.bool, device=images.device)
            cosines = (rows @ rows.mT)[:, others]
            return _graph(self.weight * cosines.square().sum() / max(1, cosines.numel()))

        return penalty


def _graph(value: Tensor) -> Term:
    return float(value.detach()), value, None
