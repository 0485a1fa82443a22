"""The spaces in which a linear layer's examples and their errors lie, read from its gradient.

[G | g] = D^T [X | 1]: the inputs of all examples span its rows, their errors its columns.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedsim.attacks.privacy.matching.linear_layers import affine_span


@dataclass(frozen=True, kw_only=True, eq=False)
class Spaces:
    """Inputs [x | 1] = origin + u directions, with outputs z = offset + u slant; errors within `columns`.

    The rows of slant are orthonormal: a step in u is as long as the step that the layer's outputs make, which
    is what lets plain gradient steps find an example.
    """

    columns: Tensor  # (units, rank), orthonormal
    origin: Tensor  # (features + 1)
    directions: Tensor  # (rank - 1, features + 1)
    offset: Tensor  # (units)
    slant: Tensor  # (rank - 1, units)
    length: float  # of the outputs of a typical input

    def inputs(self, points: Tensor) -> Tensor:
        """Return the inputs [x | 1] at these points."""
        return points @ self.directions + self.origin

    def outputs(self, points: Tensor) -> Tensor:
        """Return what the layer makes of them."""
        return points @ self.slant + self.offset

    def points(self, outputs: Tensor) -> Tensor:
        """Return the points whose outputs are nearest to these."""
        return (outputs - self.offset) @ self.slant.T

    def outside(self, errors: Tensor) -> Tensor:
        """Return what of errors (..., units) lies beside the column space."""
        return errors - (errors @ self.columns) @ self.columns.T

    def to(self, kind: torch.dtype) -> "Spaces":
        """Return them in another precision."""
        tensors: dict[str, Any] = {
            name: value.to(kind) for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        return replace(self, **tensors)


def spaces(
    gradient: Tensor,
    weight: Tensor,
    rank: int,
    columns: Tensor | None = None,
    *,
    ones: Tensor | None = None,
) -> Spaces:
    """Read the spaces of the leading `rank` singular values of [G | g] for the layer [W | b].

    columns: the column space, where it is known better than from this gradient.
    ones: what reads the 1 off an input [x | 1], where inputs are in other coordinates; None: its last entry.
    """
    left, _, right = torch.linalg.svd(gradient, full_matrices=False)
    if ones is None:
        ones = torch.eye(gradient.shape[1], dtype=gradient.dtype)[-1]
    origin, directions = affine_span(right[:rank], ones)
    orthonormal, triangle = torch.linalg.qr(weight @ directions.T)
    directions = torch.linalg.solve_triangular(triangle.T, directions, upper=False)
    offset = weight @ origin
    shift = offset @ orthonormal  # the origin is moved to the point of the shortest output
    return Spaces(
        columns=left[:, :rank] if columns is None else columns,
        origin=origin - shift @ directions,
        directions=directions,
        offset=offset - orthonormal @ shift,
        slant=orthonormal.T,
        length=_typical_length(gradient, weight, ones),
    )


def _typical_length(gradient: Tensor, weight: Tensor, ones: Tensor) -> float:
    """Return how long typical outputs are: of the rows' quotients, which are means of inputs."""
    biases = gradient @ ones
    shown = gradient[biases != 0] / biases[biases != 0, None]
    return max(1e-12, float((shown @ weight.T).norm(dim=1).median())) if len(shown) else 1.0
