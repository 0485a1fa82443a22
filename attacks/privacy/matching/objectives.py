"""How far a guessed gradient is from the observed one: the objectives of gradient matching.

An objective is tied to its target once, so that nothing about the target is computed twice.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedsim.errors import FedsimError

Gradient = Sequence[Tensor]  # one tensor a parameter, in the order of model.named_parameters()
TINY = 1e-30


class Objective:
    """A distance from the observed gradient."""

    def towards(self, target: Gradient) -> Callable[[Gradient], Tensor]:
        """Return the distance of a guessed gradient from `target`, as a scalar that can be differentiated."""
        raise NotImplementedError


class Euclidean(Objective):
    """Squared error, summed; `layer` weighting makes it relative to the size of each tensor."""

    def __init__(self, *, weighting: str = "none") -> None:
        """Choose `none` (every entry alike) or `layer` (every tensor alike)."""
        self.weighting = _one_of("weighting", weighting, ("none", "layer"))

    def scales(self, target: Gradient) -> list[float]:
        """Return the factor of each tensor's residual; a tensor whose target is zero has the mean one."""
        if self.weighting == "none":
            return [1.0] * len(target)
        norms = [float(torch.linalg.vector_norm(tensor)) for tensor in target]
        typical = math.sqrt(sum(norm**2 for norm in norms) / len(norms)) or 1.0
        return [1 / norm if norm > 1e-12 * typical else 1 / typical for norm in norms]

    def towards(self, target: Gradient) -> Callable[[Gradient], Tensor]:
        """Return the weighted squared error from `target`."""
        weights = [scale**2 for scale in self.scales(target)]

        def distance(guess: Gradient) -> Tensor:
            parts = [
                weight * (mine - theirs).square().sum()
                for mine, theirs, weight in zip(guess, target, weights, strict=True)
            ]
            return torch.stack(parts).sum()

        return distance


class Cosine(Objective):
    """One minus the cosine: direction counts, size does not.

    Paper: Geiping et al., Inverting Gradients (NeurIPS 2020).
    """

    def __init__(self, *, weighting: str = "none", angle: bool = False) -> None:
        """Choose one cosine over all (`none`) or the mean over tensors (`layer`); angle: its arccos."""
        self.weighting = _one_of("weighting", weighting, ("none", "layer"))
        self.angle = angle

    def towards(self, target: Gradient) -> Callable[[Gradient], Tensor]:
        """Return the cosine distance from `target`."""
        flat = [tensor.flatten() for tensor in target]
        squares = torch.stack([tensor.dot(tensor) for tensor in flat])
        used = torch.ones(()) if self.weighting == "none" else (squares > 0).to(squares)

        def distance(guess: Gradient) -> Tensor:
            mine = [tensor.flatten() for tensor in guess]
            products = torch.stack([left.dot(right) for left, right in zip(mine, flat, strict=True)])
            lengths = torch.stack([tensor.dot(tensor) for tensor in mine])
            if self.weighting == "none":
                cosines = products.sum() / (lengths.sum() * squares.sum()).clamp(min=TINY).sqrt()
            else:
                cosines = products / (lengths * squares).clamp(min=TINY).sqrt()
            # A shade inside: the slope of arccos is infinite at 1.
            parts = (cosines * (1 - 1e-7)).acos() if self.angle else 1 - cosines
            return (parts * used).sum() / used.sum()

        return distance


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise FedsimError(f"attack.objective.{name}: expected {' or '.join(allowed)}, got {value!r}")
    return value
