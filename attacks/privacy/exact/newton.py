"""Damped Gauss-Newton from many points at once; each takes only steps that help."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import jvp, vmap

from fedsim.attacks.privacy.exact.behind import Behind
from fedsim.attacks.privacy.exact.spaces import Spaces

# Of points (N, n): squared relative residuals (N,), J J^T (N, n, n), J gap (N, n).
Equations = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]


def descend(
    equations: Equations, points: Tensor, steps: int, *, damping: float = 0.1
) -> tuple[Tensor, Tensor]:
    """Take steps from all points; return where they end, with relative residuals."""
    damped = points.new_full((len(points),), damping)
    losses, squares, slopes = equations(points)
    identity = torch.eye(points.shape[1], dtype=points.dtype)
    for _ in range(steps):
        ridge = (damped * squares.diagonal(dim1=1, dim2=2).mean(dim=1)).clamp(min=1e-300)
        moved = points - torch.linalg.solve(squares + ridge[:, None, None] * identity, slopes)
        new_losses, new_squares, new_slopes = equations(moved)
        better = new_losses < losses  # false where the step led out of all numbers
        points = torch.where(better[:, None], moved, points)
        losses = torch.where(better, new_losses, losses)
        squares = torch.where(better[:, None, None], new_squares, squares)
        slopes = torch.where(better[:, None], new_slopes, slopes)
        damped = torch.where(better, damped / 5, damped * 3).clamp(1e-12, 1e8)
    return points, losses.sqrt()


def error_equations(spaces: Spaces, behind: Behind, labels: Tensor) -> Equations:
    """Return the equations of examples whose errors, smooth in the example, lie in the column space."""

    def equations(points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        own, slants = errors_and_slants(spaces, behind, labels, points)
        gaps, slants = spaces.outside(own), spaces.outside(slants)
        lengths = own.square().sum(dim=1).clamp(min=1e-300)
        slopes = (slants @ gaps[:, :, None])[:, :, 0]
        return gaps.square().sum(dim=1) / lengths, slants @ slants.mT, slopes

    return equations


def errors_and_slants(
    spaces: Spaces, behind: Behind, labels: Tensor, points: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the errors (N, units) of examples, and their slopes (N, n, units) by the points' coordinates."""
    outputs = spaces.outputs(points)

    def errors(values: Tensor) -> Tensor:
        return behind.slope_of_loss(values, labels)

    def along(direction: Tensor) -> Tensor:
        derived: Tensor = jvp(errors, (outputs,), (direction.expand_as(outputs),))[1]
        return derived

    return errors(outputs), vmap(along)(spaces.slant).transpose(0, 1)
