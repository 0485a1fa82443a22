"""How sure an exact example is: what rounding would leave of a true one, and how seldom a wrong one passes.

An example's vector (its error, or its activations) lies in a space of K dimensions out of n. Rounding tilts
that space, most where an example has little weight in the gradient, so what a true example leaves outside
follows from the singular values. A wrong one, fitted by its K - 1 coordinates, leaves as little as a random
vector does outside a random space of 2 K - 1 dimensions: a share r of it with a chance from the beta
distribution.
"""

import math
from dataclasses import dataclass

import torch
from scipy.special import betainc
from torch import Tensor

ARITHMETIC = 3e-7  # what float32 leaves of any vector that a client computes
ROOM = 10.0  # how much more than expected a true example may leave: rounding is not quite Gaussian
CLEAR = 3e-4  # relative deviation of an example, by what noise does to it, up to which it may be certified
TWINS = 0.1  # of an input's length: those that are nearer to each other may be mixtures
FAINT = (
    0.01  # of what a found example leaves in a gradient: one that is missing and leaves less may be a twin
)
SINGULAR = 1e-14  # of the largest eigenvalue: smaller ones are rounding
PRECISE = 1e-4  # share left outside up to which an example is called exact
FALSE_RATE = 1e-6  # chance of a false certificate in a whole search, at most


@dataclass(frozen=True, kw_only=True, eq=False)
class NoisySpace:
    """The column space of a gradient as noise has tilted it."""

    basis: Tensor  # (n, rank)
    values: Tensor  # (rank,) singular values
    noise: float  # deviation of an entry of the gradient

    def expected_residuals(self, vectors: Tensor) -> Tensor:
        """Return the share of each true vector (N, n) that noise leaves outside the space."""
        weights = (vectors @ self.basis / self.values.clamp(min=1e-300)).norm(dim=1)
        beside = self.noise * math.sqrt(max(1, self.basis.shape[0] - self.basis.shape[1]))
        found: Tensor = ARITHMETIC + beside * weights / vectors.norm(dim=1).clamp(min=1e-300)
        return found


def noisy_spaces(gradient: Tensor, rank: int) -> tuple[NoisySpace, NoisySpace]:
    """Return a gradient's spaces of columns (errors) and of rows (inputs), with the noise behind the rank."""
    left, values, right = torch.linalg.svd(gradient, full_matrices=False)
    freedom = (gradient.shape[0] - rank) * (gradient.shape[1] - rank)
    noise = math.sqrt(float(values[rank:].square().sum()) / freedom) if freedom > 0 else 0.0
    leading = values[:rank]
    return (
        NoisySpace(basis=left[:, :rank], values=leading, noise=noise),
        NoisySpace(basis=right[:rank].T, values=leading, noise=noise),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Judged:
    """Which examples pass as far as noise lets anybody tell, and which of them are exact for certain."""

    passing: Tensor
    certified: Tensor


def judge(residuals: Tensor, expected: Tensor, equations: int, taken: int, tries: int) -> Judged:
    """Judge examples by the shares that they leave outside: no more than noise would, and not by chance.

    equations: dimensions n of the vectors; taken: of them by the space and by an example's coordinates.
    """
    likely = false_rates(residuals, equations, taken, tries) < FALSE_RATE
    passing = (residuals < ROOM * expected) & likely
    return Judged(passing=passing, certified=passing & (residuals < PRECISE))


def blur(squares: Tensor, readers: Tensor, noise: Tensor, *, loose: bool = True) -> Tensor:
    """Return the deviation (N,) that noise makes in what is read off points; large where nothing holds them.

    loose: False leaves out directions that nothing holds.

    squares (N, n, n): of the equations' slopes by the points' coordinates. readers (N, n, numbers): linear in
    these. noise (N,): deviation of an equation. Of two examples that are nearly alike, any mixture leaves as
    little outside a space as they do: the residual does not tell it, this does.
    """
    sizes, vectors = torch.linalg.eigh(squares)
    floor = (SINGULAR * sizes[:, -1:]).clamp(min=1e-300)
    parts = (vectors.mT @ readers).square().sum(dim=2) / torch.maximum(sizes, floor)
    if not loose:
        parts = torch.where(sizes > floor, parts, 0.0)
    deviation: Tensor = noise * parts.sum(dim=1).sqrt()
    return deviation


def apart(inputs: Tensor) -> Tensor:
    """Say which inputs (N, d) stand apart from all others.

    Of twins m - e and m + e, any two points m -+ t e have nearly the same gradient: it changes by (1 - t^2)
    times a product of two small differences, which rounding hides.
    """
    gaps = torch.cdist(inputs.double(), inputs.double())
    gaps.fill_diagonal_(math.inf)
    found: Tensor = gaps.amin(dim=1) > TWINS * inputs.double().norm(dim=1)
    return found


def false_rates(residuals: Tensor, equations: int, taken: int, tries: int) -> Tensor:
    """Return the chance that one of so many tries is wrong and yet leaves no more than these shares."""
    free = equations - taken
    if free < 1:
        return torch.ones_like(residuals)
    shares = residuals.double().square().clamp(max=1.0).numpy()
    return (tries * torch.from_numpy(betainc(free / 2, taken / 2, shares))).clamp(max=1.0)
