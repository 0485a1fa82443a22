"""The span of a layer's inputs in its gradient, and how far from it noise may carry a true input.

G = D^T X has the row space of the inputs X. Of G + E, with noise E of deviation s in every entry, a true
input x = G^T c lies about s sqrt(outside) |c| away from the row space, with |c| = |S^-1 V x|: its distance is
held against that, so no threshold is a number of its own.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

GAP = 10.0  # between two singular values: below it nothing but rounding
LIKELY = 5.0  # times the distance that noise explains: true inputs stay below 3
ROUNDING = 1e-6  # of an input's length, in float32
UNEVEN = 3.0  # rounding is not as even as noise: its largest singular value is up to twice as large
FEW = 8  # singular values that say nothing of what noise is like
CLEAR = 50.0  # clarity from which what fits is right for certain
SKETCH = 24  # directions outside of the span that most wrong inputs are told by


@dataclass(frozen=True, eq=False)
class Span:
    """An orthonormal basis of the inputs, and the noise on the gradient that it comes from."""

    basis: Tensor  # (rank, features)
    sizes: Tensor  # (rank,) singular values
    outside: Tensor  # (features, features - rank)
    noise: float  # deviation of every entry of the gradient

    @property
    def full(self) -> bool:
        """Whether every input lies in it, so that it tells nothing."""
        return self.outside.shape[1] == 0

    @property
    def clarity(self) -> float:
        """How much farther from it a random input lies than noise carries a true one."""
        return 1 / max(1e-300, self.noise * float(self.sizes.square().reciprocal().sum().sqrt()))

    def distances(self, rows: Tensor) -> Tensor:
        """Return each input's distance from the span, as a share of its length."""
        share: Tensor = (rows @ self.outside.to(rows)).norm(dim=-1) / rows.norm(dim=-1).clamp(min=1e-30)
        return share

    def excess(self, rows: Tensor, drift: Tensor | None = None) -> Tensor:
        """Return each input's distance over what noise explains: about 1 for true inputs.

        drift: how far local steps have moved each input, which it may be off by.
        """
        wide = rows.double()
        away = (wide @ self.outside).norm(dim=-1)
        spread = ((wide @ self.basis.T) / self.sizes).norm(dim=-1)
        allowed = self.noise * math.sqrt(self.outside.shape[1]) * spread
        allowed = torch.maximum(allowed, ROUNDING / LIKELY * wide.norm(dim=-1))
        if drift is not None:
            allowed = allowed + drift / LIKELY
        over: Tensor = away / allowed.clamp(min=1e-300)
        return over

    def holds(self, rows: Tensor, drift: Tensor | None = None) -> Tensor:
        """Say of each input whether it may lie in the span; a sketch spares most of the work."""
        few = self.outside[:, :SKETCH].to(rows)
        near = self.noise * math.sqrt(few.shape[1]) / float(self.sizes.min()) * LIKELY * 2
        most = (near + 10 * ROUNDING) * rows.norm(dim=-1)
        found: Tensor = (rows @ few).norm(dim=-1) <= (most if drift is None else most + drift)
        found[found.clone()] = self.excess(rows[found], None if drift is None else drift[found]) <= LIKELY
        return found


def span_of(gradient: Tensor, most: int, told: float | None = None) -> Span:
    """Return the row space of a gradient (outputs, features) of at most so many different inputs.

    told: the deviation of the noise, if it is known. Without noise the rank shows in a gap of the singular
    values; with it, values count that stand out of what noise alone would give.
    """
    units, features = gradient.shape
    _, sizes, basis = torch.linalg.svd(gradient.double(), full_matrices=True)
    most = min(most, len(sizes))
    gaps = sizes[:most] / torch.cat([sizes[1:], sizes[-1:] / GAP])[:most].clamp(min=1e-300)
    gaps[sizes[:most] <= 1e-12 * sizes[0]] = 0
    rank = int(gaps.argmax()) + 1
    if gaps.max() >= GAP:  # one input may stand out of all others, and one hardly of the rounding
        steps = (gaps >= GAP).nonzero().flatten().flip(0) + 1
        behind = [*steps.tolist(), *range(rank, most + 1)]
        rank = next((k for k in behind if _is_noise(sizes, k, units, features)), rank)
    clear = bool(gaps.max() >= GAP) and not told
    if not clear:
        deviation = told or _deviation(sizes, most, units, features)
        edge = deviation * (math.sqrt(units) + math.sqrt(features))
        rank = max(1, int((sizes[:most] > edge).sum()))
    noise = told or _deviation(sizes, rank, units, features)
    return Span(
        basis=basis[:rank],
        sizes=sizes[:rank].clamp(min=1e-300),
        outside=basis[rank:].T.contiguous(),
        noise=noise,
    )


def _is_noise(sizes: Tensor, rank: int, units: int, features: int) -> bool:
    """Say whether the largest value behind a rank is one of noise as strong as all of them."""
    if rank > len(sizes) - FEW:
        return False
    edge = math.sqrt(units - rank) + math.sqrt(features - rank)
    return float(sizes[rank]) <= UNEVEN * _deviation(sizes, rank, units, features) * edge


def _deviation(sizes: Tensor, rank: int, units: int, features: int) -> float:
    """Return the deviation of entries that leaves these singular values behind the rank."""
    free = (units - rank) * (features - rank)
    return math.sqrt(float(sizes[rank:].square().sum()) / free) if free > 0 else 0.0
