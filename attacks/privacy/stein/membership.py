"""Inputs one by one: those whose column of slopes act'(W x + b) lies in the gradient's column space.

The hidden layer's gradient is G = S diag(lambda) X with S_ji = act'(w_j.x_i + b), so the column of every true
input lies in the m x B column space of G, and that of any other point does not. Each input is a small
least-squares problem of its own, whatever the others are.
"""

from dataclasses import dataclass

import torch
from scipy.optimize import linprog
from torch import Tensor

from fedsim.attacks.privacy.exact.newton import descend
from fedsim.attacks.privacy.stein.quadrature import Activation, slope_levels, slopes

ROOM = 2**24  # entries of the largest temporary tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class Columns:
    """The units in coordinates of the inputs' span, and the column space that slopes must lie in."""

    units: Tensor  # (m, B)
    bias: float
    act: Activation
    levels: tuple[float, float] | None  # the two slopes of an activation with one kink, at zero
    basis: Tensor  # (m, B) orthonormal

    @classmethod
    def of(cls, units: Tensor, gradient: Tensor, bias: float, act: Activation) -> "Columns":
        """Take the column space from a gradient (m, B)."""
        basis = torch.linalg.qr(gradient)[0]
        return cls(units=units, bias=bias, act=act, levels=slope_levels(act), basis=basis)

    def slopes(self, points: Tensor) -> Tensor:
        """Return act'(w.x + b) of points (n, B) at all units: (n, m)."""
        return slopes(self.act, points @ self.units.T + self.bias)[0]

    def outside(self, columns: Tensor) -> Tensor:
        """Return the part of rows (n, m) that is orthogonal to the column space."""
        return columns - (columns @ self.basis) @ self.basis.T

    def refine(self, points: Tensor, directions: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        """Move points within a subspace (k, B) towards membership; return them with relative residuals."""
        share = max(1, ROOM // (len(self.units) * len(directions)))
        parts = [self._refine(part, directions, steps) for part in torch.split(points, share)]
        return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])

    def _refine(self, points: Tensor, directions: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        """Take damped Gauss-Newton steps, all points side by side."""
        units = self.units @ directions.T  # (m, k)

        def equations(at: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            first, second = slopes(self.act, at @ units.T + self.bias)
            gaps, sizes = self._gaps(first)
            rates = (second / sizes)[:, :, None] * units  # (n, m, k)
            rates = rates - self.basis @ (self.basis.T @ rates)
            return gaps.square().sum(1), rates.mT @ rates, (gaps[:, None, :] @ rates)[:, 0]

        found, residuals = descend(equations, points @ directions.T, steps, damping=1e-3)
        return found @ directions, residuals

    def _gaps(self, columns: Tensor) -> tuple[Tensor, Tensor]:
        sizes = columns.norm(dim=1, keepdim=True).clamp(min=1e-30)
        return self.outside(columns) / sizes, sizes

    def round(self, points: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        """Return columns of two slopes nearest to the column space, and their relative residuals.

        For activations with one kink a column holds two numbers only: it is projected on the column space
        and rounded, in turns, until it stays as it is.
        """
        assert self.levels is not None
        low, high = points.new_tensor(self.levels)
        active = points @ self.units.T + self.bias > 0
        for _ in range(steps):
            columns = torch.where(active, high, low)
            inside = columns - self.outside(columns)
            above = (inside * active).sum(1) / active.sum(1).clamp(min=1)
            below = (inside * ~active).sum(1) / (~active).sum(1).clamp(min=1)
            now = inside > ((above + below) / 2)[:, None]
            if torch.equal(now, active):
                break
            active = now
        columns = torch.where(active, high, low)
        gaps, _ = self._gaps(columns)
        mixed = active.any(1) & ~active.all(1)  # a column of one slope is nobody's, unless there is one input
        return columns, torch.where(mixed | (self.basis.shape[1] == 1), gaps.norm(dim=1), torch.inf)


def separable(units: Tensor, bias: float, active: Tensor) -> bool:
    """Say whether some input makes just these units active: a linear programme for its largest margin."""
    signs = torch.where(active, 1.0, -1.0).to(units)
    rows = torch.cat([-signs[:, None] * units, torch.ones_like(units[:, :1])], dim=1)  # margin - sign w.x
    wanted = [0.0] * units.shape[1] + [-1.0]
    bounds = [(-10.0, 10.0)] * units.shape[1] + [(None, 1.0)]
    found = linprog(wanted, A_ub=rows.numpy(), b_ub=(signs * bias).numpy(), bounds=bounds)
    return bool(found.status == 0 and found.x[-1] > -1e-7)
