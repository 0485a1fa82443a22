"""How far a guessed gradient is from the observed one: the objectives of gradient matching.

An objective is tied to its target once. It returns its value together with its derivative by the guessed
gradient, worked out by hand: the search then needs no graph but that of the gradient itself.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from attacks.privacy.matching.checks import one_of

Gradient = Sequence[Tensor]  # one tensor a parameter, in the order of model.named_parameters()
# Value, and derivative by each tensor; the latter is overwritten by the next call.
Distance = Callable[[Gradient], tuple[float, list[Tensor]]]
TINY = 1e-300
NOISE = 3e-7  # of the largest tensor: smaller ones are rounding, such as of a bias before BatchNorm
INSIDE = 1 - 1e-7  # the slope of arccos is infinite at 1


class Objective:
    """A distance from the observed gradient."""

    def towards(self, target: Gradient) -> Distance:
        """Return the distance of a guessed gradient from `target`, with its derivative by the guess."""
        raise NotImplementedError


class Euclidean(Objective):
    """Squared error, summed; `layer` weighting makes it relative to the size of each tensor."""

    def __init__(self, *, weighting: str = "none") -> None:
        """Choose `none` (every entry alike) or `layer` (every tensor alike)."""
        self.weighting = one_of("objective.weighting", weighting, ("none", "layer"))

    def scales(self, target: Gradient) -> list[float]:
        """Return the factor of each tensor's residual: 0 where the target is noise or nothing."""
        if self.weighting == "none":
            return [1.0] * len(target)
        return [1 / math.sqrt(square) if square > 0 else 0.0 for square in _above_noise(_squares(target))]

    def towards(self, target: Gradient) -> Distance:
        """Return the weighted squared error from `target`."""
        weights = [scale**2 for scale in self.scales(target)]
        gaps = [torch.empty_like(tensor) for tensor in target]  # large ones are slow to allocate

        def distance(guess: Gradient) -> tuple[float, list[Tensor]]:
            for gap, mine, theirs in zip(gaps, guess, target, strict=True):
                torch.sub(mine, theirs, out=gap)
            value = sum(weight * square for weight, square in zip(weights, _squares(gaps), strict=True))
            torch._foreach_mul_(gaps, [2 * weight for weight in weights])
            return value, gaps

        return distance


class Cosine(Objective):
    """One minus the cosine: direction counts, size does not.

    Paper: Geiping et al., Inverting Gradients (NeurIPS 2020).
    """

    def __init__(self, *, weighting: str = "none", angle: bool = False) -> None:
        """Choose one cosine over all (`none`) or the mean over tensors (`layer`); angle: its arccos."""
        self.weighting = one_of("objective.weighting", weighting, ("none", "layer"))
        self.angle = angle

    def towards(self, target: Gradient) -> Distance:
        """Return the cosine distance from `target`."""
        flat = [tensor.flatten() for tensor in target]
        squares = _squares(flat)
        if self.weighting == "layer":
            squares = _above_noise(squares)
        slopes = [torch.empty_like(tensor) for tensor in target]  # large ones are slow to allocate
        whole = self.weighting == "none"
        share = 1.0 if whole else 1 / max(1, sum(square > 0 for square in squares))

        def distance(guess: Gradient) -> tuple[float, list[Tensor]]:
            rows = [tensor.flatten() for tensor in guess]
            products = torch.stack(
                [mine.dot(theirs) for mine, theirs in zip(rows, flat, strict=True)]
            ).tolist()
            terms = list(zip(products, _squares(rows), squares, strict=True))
            if whole:
                terms = [(sum(products), sum(length for _, length, _ in terms), sum(squares))]
            total, toward, along = 0.0, list[float](), list[float]()
            for product, length, square in terms:
                size = max(math.sqrt(length) * math.sqrt(square), TINY)
                value, rate = self._shape(product / size, share if square > 0 else 0.0)
                total += value
                # the derivative of a cosine by the guess: target / size - cosine guess / length
                toward.append(rate / size)
                along.append(-rate * product / size / max(length, TINY))
            if whole:
                toward, along = toward * len(rows), along * len(rows)
            for slope, mine, theirs, one, two in zip(slopes, guess, target, along, toward, strict=True):
                torch.mul(mine, one, out=slope).add_(theirs, alpha=two)
            return total, slopes

        return distance

    def _shape(self, cosine: float, share: float) -> tuple[float, float]:
        """Return the distance of a cosine and its derivative, times its share."""
        if not self.angle:
            return share * (1 - cosine), -share
        inside = max(-INSIDE, min(INSIDE, cosine * INSIDE))
        return share * math.acos(inside), -share * INSIDE / math.sqrt(1 - inside**2)


def _squares(tensors: Gradient) -> list[float]:
    """Return the squared length of every tensor, in few calls: a call costs more than a small sum."""
    lengths: list[float] = torch.stack(torch._foreach_norm(list(tensors))).double().tolist()
    return [length**2 for length in lengths]


def _above_noise(squares: list[float]) -> list[float]:
    """Set the squared lengths of tensors that are noise to 0."""
    floor = NOISE**2 * max(squares, default=0.0)
    return [square if square > floor else 0.0 for square in squares]
