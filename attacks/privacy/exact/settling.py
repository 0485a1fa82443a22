"""All examples of a batch at once, where errors are smooth: Gauss-Newton on the whole gradient of a layer.

An example's own equations know the spaces only as well as noise leaves them. The gradient is sum_k w_k d(x_k)
[x_k | 1]^T entry by entry, which fixes all examples together far better: K (K - 1) unknowns for K times as
many equations as there are units.
"""

import torch
from torch import Tensor

from fedsim.attacks.privacy.exact.behind import Behind
from fedsim.attacks.privacy.exact.newton import errors_and_slants
from fedsim.attacks.privacy.exact.spaces import Spaces

MOST = 2500  # unknowns whose equations are solved at once
STEPS = 3


def settled(
    spaces: Spaces, behind: Behind, gradient: Tensor, points: Tensor, labels: Tensor, weights: Tensor
) -> Tensor:
    """Return the points (K, K - 1) of all examples from which this gradient follows best.

    gradient: (units, K), in the coordinates of the spaces' inputs. weights: of the examples in it.
    """
    if points.numel() > MOST:
        return points
    best = float("inf")
    kept = points
    for _ in range(STEPS):
        errors, slants = errors_and_slants(spaces, behind, labels, points)
        errors, slants = weights[:, None] * errors, weights[:, None, None] * slants
        inputs, directions = spaces.inputs(points), spaces.directions
        gap = errors.T @ inputs - gradient
        if not float(gap.norm()) < best:  # false where a step led out of all numbers
            break
        best, kept = float(gap.norm()), points
        # The slope by coordinate j of example k is slant_kj inputs_k^T + error_k direction_j^T.
        crossed = torch.einsum("kju,lu,ki->kjli", slants, errors, inputs @ directions.T)
        squares = (
            torch.einsum("kju,liu,kl->kjli", slants, slants, inputs @ inputs.T)
            + crossed
            + crossed.permute(2, 3, 0, 1)
            + torch.einsum("kl,ji->kjli", errors @ errors.T, directions @ directions.T)
        )
        slopes = torch.einsum("kju,uf,kf->kj", slants, gap, inputs) + errors @ gap @ directions.T
        size = points.numel()
        step = torch.linalg.lstsq(squares.reshape(size, size), slopes.reshape(size, 1)).solution
        points = points - step.view_as(points)
    return kept
