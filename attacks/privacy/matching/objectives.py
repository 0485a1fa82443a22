"""How far a guessed gradient is from the observed one: the objectives of gradient matching.

An objective is tied to its target once. It returns its value together with its derivative by the guessed
gradient, worked out by hand: the search then needs no graph but that of the gradient itself.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedsim.core.settings import number, one_of

Gradient = Sequence[Tensor]  # one tensor a parameter, in the order of model.named_parameters()
# Value, and derivative by each tensor; the latter is overwritten by the next call.
Distance = Callable[[Gradient], tuple[float, list[Tensor]]]
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
        self.weighting = one_of("attack.objective.weighting", weighting, ("none", "layer"))

    def scales(self, target: Gradient) -> list[float]:
        """Return the factor of each tensor's residual: 0 where the target is noise or nothing."""
        if self.weighting == "none":
            return [1.0] * len(target)
        return [1 / math.sqrt(square) if square > 0 else 0.0 for square in _above_noise(_squares(target))]

    def towards(self, target: Gradient) -> Distance:
        """Return the weighted squared error from `target`."""
        weights = [scale**2 for scale in self.scales(target)]
        goal, (gap, gaps) = _flat(target), _buffer(target)

        def distance(guess: Gradient) -> tuple[float, list[Tensor]]:
            torch._foreach_copy_(gaps, list(guess))
            gap.sub_(goal)
            if self.weighting == "none":
                value = float(gap.dot(gap))
                gap.mul_(2)
            else:
                value = sum(weight * square for weight, square in zip(weights, _squares(gaps), strict=True))
                torch._foreach_mul_(gaps, [2 * weight for weight in weights])
            return value, gaps

        return distance


class EuclideanAbsolute(Objective):
    """Squared error and a share of the absolute error: few large differences do not hide many small ones.

    Paper: Deng et al., TAG: Gradient Attack on Transformer-based Language Models (EMNLP Findings 2021).
    """

    def __init__(self, *, absolute: float = 0.01) -> None:
        """Set the share of the absolute error, of the first tensor; it falls to a half with depth."""
        self.absolute = number("attack.objective.absolute", absolute, least=0)

    def towards(self, target: Gradient) -> Distance:
        """Return the sum of both errors from `target`, relative to its size."""
        goal, (gap, gaps) = _flat(target), _buffer(target)
        last = max(1, len(target) - 1)
        shares = [self.absolute * (1 - place / last / 2) for place in range(len(target))]
        square, size = float(goal.dot(goal)), float(goal.abs().sum())

        def distance(guess: Gradient) -> tuple[float, list[Tensor]]:
            torch._foreach_copy_(gaps, list(guess))
            gap.sub_(goal)
            value = float(gap.dot(gap)) / square
            signs = [part.sign() for part in gaps]
            value += sum(
                share * float(part.abs().sum()) / size for share, part in zip(shares, gaps, strict=True)
            )
            gap.mul_(2 / square)
            for part, sign, share in zip(gaps, signs, shares, strict=True):
                part.add_(sign, alpha=share / size)
            return value, gaps

        return distance


class Cosine(Objective):
    """One minus the cosine: direction counts, size does not.

    Paper: Geiping et al., Inverting Gradients (NeurIPS 2020).
    """

    def __init__(self, *, weighting: str = "none", angle: bool = False) -> None:
        """Choose one cosine over all (`none`) or the mean over tensors (`layer`); angle: its arccos."""
        self.weighting = one_of("attack.objective.weighting", weighting, ("none", "layer"))
        self.angle = angle

    def towards(self, target: Gradient) -> Distance:
        """Return the cosine distance from `target`."""
        if self.weighting == "layer":
            return self._by_layer(target)
        goal, (flat, guessed), (slope, slopes) = _flat(target), _buffer(target), _buffer(target)
        square, least = float(goal.dot(goal)), torch.finfo(goal.dtype).tiny

        def distance(guess: Gradient) -> tuple[float, list[Tensor]]:
            torch._foreach_copy_(guessed, list(guess))
            value, toward, along = self._terms(
                float(flat.dot(goal)), float(flat.dot(flat)), square, 1.0, least
            )
            torch.mul(flat, along, out=slope).add_(goal, alpha=toward)
            return value, slopes

        return distance

    def _by_layer(self, target: Gradient) -> Distance:
        squares = _above_noise(_squares(target))
        share = 1 / max(1, sum(square > 0 for square in squares))
        slopes, least = _buffer(target)[1], torch.finfo(target[0].dtype).tiny

        def distance(guess: Gradient) -> tuple[float, list[Tensor]]:
            pairs = zip(guess, target, strict=True)
            products = [float(mine.flatten().dot(theirs.flatten())) for mine, theirs in pairs]
            total = 0.0
            terms = zip(products, _squares(guess), squares, slopes, guess, target, strict=True)
            for product, length, square, slope, mine, theirs in terms:
                part = share if square > 0 else 0.0
                value, toward, along = self._terms(product, length, square, part, least)
                torch.mul(mine, along, out=slope).add_(theirs, alpha=toward)
                total += value
            return total, slopes

        return distance

    def _terms(
        self, product: float, length: float, square: float, share: float, least: float
    ) -> tuple[float, float, float]:
        """Return a share of the distance, and the factors of target and guess in its derivative.

        The derivative of a cosine by the guess is target / size - cosine guess / length. Squares below the
        least float have no direction.
        """
        size = math.sqrt(length) * math.sqrt(square)
        if min(size, length) < least:
            return self._shape(0.0, share)[0], 0.0, 0.0
        value, rate = self._shape(product / size, share)
        return value, rate / size, -rate * product / size / length

    def _shape(self, cosine: float, share: float) -> tuple[float, float]:
        """Return the distance of a cosine and its derivative, times its share."""
        if not self.angle:
            return share * (1 - cosine), -share
        inside = max(-INSIDE, min(INSIDE, cosine * INSIDE))
        return share * math.acos(inside), -share * INSIDE / math.sqrt(1 - inside**2)


def _flat(tensors: Gradient) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])


def _buffer(tensors: Gradient) -> tuple[Tensor, list[Tensor]]:
    """Return memory for tensors of these shapes, once as a whole and once as its parts.

    Allocated once: new memory is slow for large models, and many small calls are for small ones.
    """
    whole = torch.empty_like(_flat(tensors))
    parts = torch.split(whole, [tensor.numel() for tensor in tensors])
    return whole, [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]


def _squares(tensors: Gradient) -> list[float]:
    """Return the squared length of every tensor, in few calls: a call costs more than a small sum."""
    lengths: list[float] = torch.stack(torch._foreach_norm(list(tensors))).double().tolist()
    return [length**2 for length in lengths]


def _above_noise(squares: list[float]) -> list[float]:
    """Set the squared lengths of tensors that are noise to 0."""
    floor = NOISE**2 * max(squares, default=0.0)
    return [square if square > floor else 0.0 for square in squares]
