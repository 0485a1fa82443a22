"""Damped Gauss-Newton on errors that depend smoothly on an example: float precision from nearby."""

import torch
from torch import Tensor
from torch.func import jvp, vmap

from fedsim.attacks.privacy.exact.behind import Behind
from fedsim.attacks.privacy.exact.search import relative
from fedsim.attacks.privacy.exact.spaces import Spaces

STEPS = 15


def newton(spaces: Spaces, behind: Behind, points: Tensor, labels: Tensor, steps: int = STEPS) -> Tensor:
    """Move points so that their errors lie in the column space; each takes only steps that help."""
    damping = points.new_full((len(points),), 1e-2)
    losses = _losses(spaces, behind, points, labels)
    identity = torch.eye(points.shape[1], dtype=points.dtype)
    for _ in range(steps):
        errors, slopes = _errors_and_slopes(spaces, behind, points, labels)
        gaps, slants = spaces.outside(errors), spaces.outside(slopes)
        squares = slants @ slants.mT
        ridge = damping * squares.diagonal(dim1=1, dim2=2).mean(dim=1).clamp(min=1e-300)
        downhill = (slants @ gaps[:, :, None])[:, :, 0]
        moved = points - torch.linalg.solve(squares + ridge[:, None, None] * identity, downhill)
        moved = torch.where(moved.isfinite().all(dim=1, keepdim=True), moved, points)
        now = _losses(spaces, behind, moved, labels)
        better = now < losses
        points, losses = torch.where(better[:, None], moved, points), torch.where(better, now, losses)
        damping = torch.where(better, damping / 10, damping * 4).clamp(1e-14, 1e8)
    return points


def _losses(spaces: Spaces, behind: Behind, points: Tensor, labels: Tensor) -> Tensor:
    errors = behind.errors(spaces.outputs(points), labels).detach()
    return relative(spaces.outside(errors), errors)


def _errors_and_slopes(
    spaces: Spaces, behind: Behind, points: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    """Return errors (N, units), and their derivatives (N, rank - 1, units) by the coordinates."""
    outputs = spaces.outputs(points)

    def errors(values: Tensor) -> Tensor:
        return behind.slope_of_loss(values, labels)

    def along(direction: Tensor) -> Tensor:
        derived: Tensor = jvp(errors, (outputs,), (direction.expand_as(outputs),))[1]
        return derived

    return errors(outputs), vmap(along)(spaces.slant).transpose(0, 1)
