"""The spaces in which a linear layer's examples and their errors lie, read from its gradient.

[G | g] = D^T [X | 1]: the inputs of all examples span its rows, their errors its columns.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedsim.attacks.privacy.matching.linear_layers import STANDS_OUT, affine_span

CLEARER = 5.0  # times that the faintest example stands out farther from rounding
FAINTEST = 1e-30  # length of a gradient's row below which float32 has not all its digits


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


def row_scales(gradient: Tensor, size: int, different: int, *, margin: bool = False) -> tuple[Tensor, int]:
    """Return factors (units, 1) of a gradient's rows, and how many of `size` examples are seen with them.

    float32 rounds a number by a share of it. So examples that are nearly without loss, lost beside loud ones
    in the whole gradient, stand out in the rows of units that are silent for the loud ones. With rows of
    equal length all are seen at once. Ones, where that shows no more than `different`: behind noise.

    margin: also where as many stand out CLEARER times as far.
    """
    ones = gradient.new_ones(len(gradient), 1)
    if size >= min(gradient.shape) - 1:
        return ones, different
    lengths = gradient.norm(dim=1, keepdim=True)
    scales = torch.where(lengths > 0, 1 / lengths.clamp(min=FAINTEST), ones)
    values = torch.linalg.svdvals(scales * gradient)
    seen = int((values[:size] > STANDS_OUT * values[size]).sum())
    plain = torch.linalg.svdvals(gradient)
    far = (values[seen - 1] / values[size]) > CLEARER * (plain[seen - 1] / plain[size])
    clearer = margin and seen == different and bool(far)
    return (scales, seen) if seen > different or clearer else (ones, different)
