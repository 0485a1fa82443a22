"""Many starts at once, by plain gradient steps, until some of them are at an example."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from fedsim.attacks.privacy.exact.behind import Behind
from fedsim.attacks.privacy.exact.spaces import Spaces

Loss = Callable[
    [Tensor, Tensor | None], Tensor
]  # of points, at widths (N, 1) of the kinks: one for each point
WIDEST, SHARPEST = (0.2, 0.8), 0.02  # widths of the kinks, in units of a typical output
RATE = 0.3  # length of a step, in units of a layer's outputs
MEMORY = (0.9, 0.99)  # of the mean slope and of its size
LAST = 0.3  # share of the steps in which they get shorter


def random_points(spaces: Spaces, number: int, random: torch.Generator) -> Tensor:
    """Return starts in all directions, about as long as a typical example."""
    size = spaces.slant.shape[0]
    spread = torch.empty(number, 1).uniform_(-1.0, 0.3, generator=random).exp()
    points: Tensor = torch.randn(number, size, generator=random) * spread * spaces.length
    return points / math.sqrt(max(1, size))


def random_widths(
    spaces: Spaces, number: int, random: torch.Generator, widest: tuple[float, float] = WIDEST
) -> Tensor:
    """Return how wide kinks are at first: wide ones lead to few examples surely, narrow ones to many."""
    output = spaces.length / math.sqrt(spaces.slant.shape[1])
    return output * torch.empty(number, 1).uniform_(*widest, generator=random)


def anneal(loss: Loss, points: Tensor, widths: Tensor, *, steps: int) -> Tensor:
    """Go down from all points at once, while kinks become sharper; return where they end.

    Steps are as in Adam, with one size for all coordinates of a point: they are equally long in the layer's
    outputs, and no coordinate is special.
    """
    slope_mean, size_mean = torch.zeros_like(points), points.new_zeros(len(points), 1)
    for step in range(steps):
        share = step / max(1, steps - 1)
        width = widths * SHARPEST**share
        with torch.enable_grad():
            points = points.detach().requires_grad_()
            slopes = torch.autograd.grad(loss(points, width).sum(), points)[0]
        slope_mean = torch.lerp(slopes, slope_mean, MEMORY[0])
        size_mean = torch.lerp(slopes.square().mean(dim=1, keepdim=True), size_mean, MEMORY[1])
        mean = slope_mean / (1 - MEMORY[0] ** (step + 1))
        size = (size_mean / (1 - MEMORY[1] ** (step + 1))).sqrt().clamp(min=1e-30)
        rate = RATE * min(1.0, max(0.02, (1 - share) / LAST))
        points = points.detach() - rate * mean / size
    return points


def error_loss(spaces: Spaces, behind: Behind, labels: Tensor) -> Loss:
    """Return how much of an example's error lies beside the column space, squared and relative."""

    def loss(points: Tensor, width: Tensor | None) -> Tensor:
        errors = behind.errors(spaces.outputs(points), labels, width)
        return relative(spaces.outside(errors), errors)

    return loss


def relative(parts: Tensor, rows: Tensor) -> Tensor:
    """Return the squared length of the parts of rows, relative to that of the rows."""
    return parts.square().sum(dim=1) / rows.square().sum(dim=1).clamp(min=1e-30)
