"""Whole sentences of an encoder: which words stand together, from what comes back through the first attention.

G = D^T X for queries and keys: errors D of every pair (token, place), embeddings X, which are known. A
direction u in which only one token's embeddings reach shows its errors alone: G u. What comes back to a query
is a sum over the keys of its own sentence, head by head, and what comes back to a key one over its queries:

    dq_i = sum_j ds_ij k_j,    dk_j = sum_i ds_ij q_i    (i, j in one sentence)

So a token's errors are a sum of few known vectors, the same few in every head: sparse coding with at most one
word a place. A sentence has fewer words than a head has units, so a wrong set leaves a third of the errors
unexplained, and the right one nothing but rounding or noise.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedsim.attacks.privacy.text.attention import Attention
from fedsim.attacks.privacy.text.spans import LIKELY
from fedsim.core.types import Weights

ALONE = 1 - 1e-6  # a singular value of one: no other token's embeddings reach there
RANK = 1e-6  # of the largest singular value of the embeddings: less is rounding
ROUNDING = 1e-6  # of a token's errors
WRONG = 0.03  # share of the errors' squares that no wrong set explains
SWEEPS = 6  # over all places, while the choice of words becomes better
TINY = 1e-9


@dataclass(frozen=True, kw_only=True, eq=False)
class Pairs:
    """Tokens and places that may be in the batch, and what they are for the first attention."""

    tokens: Tensor  # (n,)
    places: Tensor  # (n,)
    rows: Tensor  # (n, features) float64
    atoms: Tensor  # (n, 2 heads, units): keys, then queries

    def only(self, kept: Tensor) -> "Pairs":
        """Return some of them."""
        return Pairs(
            tokens=self.tokens[kept], places=self.places[kept], rows=self.rows[kept], atoms=self.atoms[kept]
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Errors:
    """What came back to the queries and keys of one token."""

    token: int
    direction: Tensor  # (features,) in which no other token reaches
    shares: Tensor  # (2 heads, units)
    noise: float  # deviation of every entry

    def unexplained(self, rest: Tensor) -> float:
        """Return the share of the errors' squares that a set of words leaves over, a mean over heads."""
        return float((rest.square().sum(dim=-1) * self.weights).sum())

    @property
    def weights(self) -> Tensor:
        """Weight of each head: all alike, but for those that are nothing but noise."""
        sizes = self.shares.square().sum(dim=-1)
        floor = self.noise**2 * self.shares.shape[-1]
        return 1 / (sizes + floor + 1e-300) / len(sizes)

    @property
    def tolerance(self) -> float:
        """Share that noise and rounding leave over."""
        of_noise = float((self.weights * self.noise**2 * self.shares.shape[-1]).sum())
        return (LIKELY / 2) * of_noise + ROUNDING**2


def pairs_of(
    model: nn.Module, attention: Attention, tokens: Tensor, places: Tensor, rows: Tensor
) -> Pairs:
    """Return candidates with their keys and queries, head by head."""
    atoms = []
    for name in (attention.key, attention.query):
        layer = model.get_submodule(name)
        made = rows @ layer.weight.detach().double().mT  # type: ignore[operator]
        if layer.bias is not None:
            made = made + layer.bias.detach().double()  # type: ignore[operator]
        atoms.append(made.view(len(rows), -1, attention.head))
    return Pairs(tokens=tokens, places=places, rows=rows, atoms=torch.cat(atoms, dim=1))


def errors_of(pairs: Pairs, attention: Attention, received: Weights) -> Iterator[Errors]:
    """Yield the errors of every token that some direction shows alone."""
    left, sizes, right = torch.linalg.svd(pairs.rows, full_matrices=False)
    rank = int((sizes > RANK * sizes[0]).sum())
    left, sizes, right = left[:, :rank], sizes[:rank], right[:rank]
    gradients = [received[f"{name}.weight"].double() for name in (attention.query, attention.key)]
    free = (pairs.rows.shape[1] - rank) * sum(len(gradient) for gradient in gradients)
    outside = sum(
        float(gradient.square().sum() - (gradient @ right.T).square().sum()) for gradient in gradients
    )
    noise = math.sqrt(max(0.0, outside) / free) if free else 0.0
    for token in torch.unique(pairs.tokens).tolist():
        _, reach, ways = torch.linalg.svd(left[pairs.tokens == token], full_matrices=False)
        for way in ways[reach > ALONE]:
            direction = right.T @ (way / sizes)
            shares = torch.cat([(gradient @ direction).view(-1, attention.head) for gradient in gradients])
            if bool(shares.any()):
                yield Errors(
                    token=token, direction=direction, shares=shares, noise=noise * float(direction.norm())
                )


def sentence_of(pairs: Pairs, errors: Errors, length: int, end: int | None) -> Tensor | None:
    """Return the numbers of the pairs that stand together with a token, in order; None: none do."""
    chosen, left = _grown(pairs, errors, length)
    if left > errors.tolerance:
        chosen, left = _improved(pairs, errors, chosen, length)
    if left > min(errors.tolerance, WRONG):
        return None
    order = sorted(chosen, key=lambda number: int(pairs.places[number]))
    for last, number in enumerate(order):  # words behind the end explain nothing
        ends = end is None or int(pairs.tokens[number]) == end
        if ends and last and errors.unexplained(_rest(pairs, errors, order[: last + 1])) <= errors.tolerance:
            whole = torch.tensor(order[: last + 1])
            return whole if torch.equal(pairs.places[whole], torch.arange(last + 1)) else None
    return None


def _grown(pairs: Pairs, errors: Errors, length: int) -> tuple[list[int], float]:
    """Choose word after word, each the one that explains most of what is left."""
    chosen, atoms, rest = list[int](), pairs.atoms, errors.shares
    free = torch.ones(length, dtype=torch.bool)
    for _ in range(length):
        gain = _gain(atoms, rest, errors.weights).masked_fill(~free[pairs.places], -1.0)
        best = int(gain.argmax())
        if gain[best] <= 0:
            break
        way = atoms[best] / atoms[best].norm(dim=-1, keepdim=True).clamp(min=TINY)
        atoms = atoms - (atoms * way).sum(dim=-1, keepdim=True) * way
        rest = rest - (rest * way).sum(dim=-1, keepdim=True) * way
        free[pairs.places[best]] = False
        chosen.append(best)
        if errors.unexplained(rest) <= errors.tolerance:
            break
    return chosen, errors.unexplained(rest)


def _improved(
    pairs: Pairs, errors: Errors, chosen: Sequence[int], length: int
) -> tuple[list[int], float]:
    """Choose the word of one place after the other anew, given all others, until none changes."""
    words, left = {int(pairs.places[number]): number for number in chosen}, math.inf
    for _ in range(SWEEPS):
        before = dict(words)
        for place in range(length):
            here = (pairs.places == place).nonzero()[:, 0]
            if not len(here):
                continue
            others = [number for own, number in words.items() if own != place]
            basis = _basis(pairs, others)
            rest = _off(errors.shares, basis)
            atoms = _off(pairs.atoms[here].transpose(0, 1), basis).transpose(0, 1)
            gain = _gain(atoms, rest, errors.weights)
            words[place] = int(here[int(gain.argmax())])
            left = errors.unexplained(rest) - float(gain.max())
        if words == before or left <= errors.tolerance:
            break
    numbers = list(words.values())
    return numbers, errors.unexplained(_rest(pairs, errors, numbers))


def _gain(atoms: Tensor, rest: Tensor, weights: Tensor) -> Tensor:
    """Return how much each atom (n, heads, units) would explain of what is left."""
    sizes = atoms.norm(dim=-1)
    along = (atoms * rest).sum(dim=-1) / sizes.clamp(min=TINY)
    gain: Tensor = (along.square() * (sizes > 1e-6) * weights).sum(dim=-1)
    return gain


def _basis(pairs: Pairs, numbers: Sequence[int]) -> Tensor:
    """Return orthonormal columns (heads, units, words) of the span of some pairs."""
    return torch.linalg.qr(pairs.atoms[list(numbers)].permute(1, 2, 0))[0]


def _off(values: Tensor, basis: Tensor) -> Tensor:
    """Return (heads, units) or (heads, n, units) without their share of a basis."""
    rows = values if values.ndim == 3 else values[:, None]
    rows = rows - (rows @ basis) @ basis.mT
    return rows if values.ndim == 3 else rows[:, 0]


def _rest(pairs: Pairs, errors: Errors, numbers: Sequence[int]) -> Tensor:
    return _off(errors.shares, _basis(pairs, numbers))
