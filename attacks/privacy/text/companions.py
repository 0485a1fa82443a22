"""Whole sentences of an encoder: which words stand together, from errors of the first attention.

G = D^T X for queries and keys: errors D of every pair (token, place), embeddings X, which are known. A
direction u in which only one token's embeddings reach shows its errors alone: G u. What comes back to a query
is a sum over the keys of its own sentence, head by head, and what comes back to a key one over its queries:

    dq_i = sum_j ds_ij k_j,    dk_j = sum_i ds_ij q_i    (i, j in one sentence)

So a token's errors are a sum of few known vectors, the same few in every head: sparse coding with at most one
word a place. A sentence has fewer words than a head has units, so a wrong set leaves a third of the errors
unexplained, and the right one nothing but rounding or noise.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
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
TOGETHER = 5  # tokens whose errors are explained together, where those of one lead astray
ORDERS = 3  # of words that are looked at further
NEARLY = 0.02  # unexplained: words are right, and some of them at another's place
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
    noise: Tensor  # (2 heads,) deviation of every entry

    @property
    def weights(self) -> Tensor:
        """Weight of each head: all alike, but for those that are nothing but noise."""
        sizes = self.shares.square().sum(dim=-1)
        floor = self.noise.square() * self.shares.shape[-1]
        return 1 / (sizes + floor + 1e-300) / len(sizes)

    @property
    def tolerance(self) -> float:
        """Share of the squares that noise and rounding leave unexplained."""
        of_noise = float((self.weights * self.noise.square()).sum()) * self.shares.shape[-1]
        return min(WRONG, (LIKELY / 2) * of_noise + ROUNDING**2)


@dataclass(frozen=True, eq=False)
class Goal:
    """Errors of one token or of several, which the same words are to explain."""

    shares: Tensor  # (2 heads, tokens, units)
    weights: Tensor  # (2 heads, tokens)

    @classmethod
    def of(cls, several: Sequence[Errors]) -> "Goal":
        """Return the goal to explain the errors of some tokens, each as much as the other."""
        return cls(
            torch.stack([errors.shares for errors in several], dim=1),
            torch.stack([errors.weights for errors in several], dim=1) / len(several),
        )

    def unexplained(self, basis: Tensor) -> Tensor:
        """Return the share of the squares of each token's errors (tokens,) that a basis leaves over."""
        return (_off(self.shares, basis).square().sum(dim=-1) * self.weights).sum(dim=-2)


def pairs_of(model: nn.Module, attention: Attention, tokens: Tensor, places: Tensor, rows: Tensor) -> Pairs:
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
    gradient = torch.cat([received[f"{name}.weight"].double() for name in (attention.query, attention.key)])
    rest = (gradient - gradient @ right.T @ right).view(-1, attention.head, gradient.shape[1])
    # Rounding is no white noise: it follows the size of entries, head by head and feature by feature.
    spread = rest.square().mean(dim=1) * gradient.shape[1] / max(1, gradient.shape[1] - rank)
    for token in torch.unique(pairs.tokens).tolist():
        _, reach, ways = torch.linalg.svd(left[pairs.tokens == token], full_matrices=False)
        for way in ways[reach > ALONE]:
            direction = right.T @ (way / sizes)
            shares = (gradient @ direction).view(-1, attention.head)
            if bool(shares.any()):
                noise = (spread @ direction.square()).sqrt()
                yield Errors(token=token, direction=direction, shares=shares, noise=noise)


def sentence_of(
    pairs: Pairs, errors: Errors, others: Mapping[int, Errors], length: int, end: int | None
) -> Tensor | None:
    """Return the numbers of the pairs that stand together with a token, in order; None: none do.

    others: errors of all tokens; those of words that seem to stand there help to find the rest.
    """
    own, together = Goal.of([errors]), [errors]
    chosen = _grown(pairs, own, length, errors.tolerance)
    while float(own.unexplained(_basis(pairs, chosen))) > errors.tolerance:
        goal = Goal.of(together)
        tried = [
            _improved(pairs, goal, start, length) for start in (chosen, _grown(pairs, goal, length, 0.0))
        ]
        chosen = min(tried, key=lambda words: float(goal.unexplained(_basis(pairs, words)).sum()))
        helper = _helper(pairs, chosen, together, others)
        if len(together) > TOGETHER or helper is None:
            break
        together.append(helper)
    chosen = _swept(pairs, Goal.of(together), chosen, length)  # words of little weight, too
    order = sorted(chosen, key=lambda number: int(pairs.places[number]))
    for last, number in enumerate(order):  # words behind the end explain nothing
        ends = end is None or int(pairs.tokens[number]) == end
        whole = torch.tensor(order[: last + 1])
        if ends and last and float(own.unexplained(_basis(pairs, order[: last + 1]))) <= errors.tolerance:
            return whole if torch.equal(pairs.places[whole], torch.arange(last + 1)) else None
    return None


def _helper(
    pairs: Pairs, chosen: Sequence[int], together: Sequence[Errors], others: Mapping[int, Errors]
) -> Errors | None:
    """Return the errors of the word among those chosen that the others explain best."""
    used = {errors.token for errors in together}
    tokens = [token for token in pairs.tokens[list(chosen)].tolist() if token in others.keys() - used]
    if not tokens:
        return None
    left = Goal.of([others[token] for token in tokens]).unexplained(_basis(pairs, chosen))
    return others[tokens[int(left.argmin())]]


def _grown(pairs: Pairs, goal: Goal, length: int, enough: float) -> list[int]:
    """Choose word after word, each the one that explains most of what is left."""
    chosen, atoms, rest = list[int](), pairs.atoms, goal.shares
    free = torch.ones(length, dtype=torch.bool)
    for _ in range(length):
        gain = _gain(atoms, rest, goal.weights).masked_fill(~free[pairs.places], -1.0)
        best = int(gain.argmax())
        if gain[best] <= 0:
            break
        way = atoms[best] / atoms[best].norm(dim=-1, keepdim=True).clamp(min=TINY)
        atoms = atoms - (atoms * way).sum(dim=-1, keepdim=True) * way
        rest = rest - (rest @ way[:, :, None]) * way[:, None]
        free[pairs.places[best]] = False
        chosen.append(best)
        if float((rest.square().sum(dim=-1) * goal.weights).sum()) <= enough:
            break
    return chosen


def _improved(pairs: Pairs, goal: Goal, chosen: Sequence[int], length: int) -> list[int]:
    """Choose words anew, then their order, until neither makes it better."""
    best = _swept(pairs, goal, chosen, length)
    left = float(goal.unexplained(_basis(pairs, best)).sum())
    while left < NEARLY:
        tried = [_swept(pairs, goal, moved, length) for moved in _moved(pairs, goal, best)]
        lefts = [float(goal.unexplained(_basis(pairs, words)).sum()) for words in tried]
        if not tried or min(lefts) >= left:
            break
        left, best = min(zip(lefts, tried, strict=True))
    return best


def _moved(pairs: Pairs, goal: Goal, chosen: Sequence[int]) -> list[list[int]]:
    """Return the best of all orders with two words swapped, or one moved and those between pushed along."""
    tokens = pairs.tokens[list(chosen)].tolist()
    places = pairs.places[list(chosen)].tolist()
    numbers = {
        pair: number
        for number, pair in enumerate(zip(pairs.tokens.tolist(), pairs.places.tolist(), strict=True))
    }
    orders = list[list[int]]()
    for first, last in itertools.combinations(range(len(tokens)), 2):
        part = tokens[first : last + 1]
        for other in ([*part[1:], part[0]], [part[-1], *part[:-1]], [part[-1], *part[1:-1], part[0]]):
            order = [*tokens[:first], *other, *tokens[last + 1 :]]
            found = [numbers.get(pair, -1) for pair in zip(order, places, strict=True)]
            if order != tokens and -1 not in found:
                orders.append(found)
    if not orders:
        return []
    atoms = pairs.atoms[torch.tensor(orders)].permute(0, 2, 3, 1)  # (orders, heads, units, words)
    lefts = goal.unexplained(torch.linalg.qr(atoms)[0]).sum(dim=-1)
    return [orders[place] for place in lefts.argsort()[:ORDERS].tolist()]


def _swept(pairs: Pairs, goal: Goal, chosen: Sequence[int], length: int) -> list[int]:
    """Choose the word of one place after the other anew, given all others, until none changes."""
    words = {int(pairs.places[number]): number for number in chosen}
    for _ in range(SWEEPS):
        before = dict(words)
        for place in range(length):
            here = (pairs.places == place).nonzero()[:, 0]
            if not len(here):
                continue
            basis = _basis(pairs, [number for own, number in words.items() if own != place])
            atoms = _off(pairs.atoms[here].transpose(0, 1), basis).transpose(0, 1)
            gain = _gain(atoms, _off(goal.shares, basis), goal.weights)
            words[place] = int(here[int(gain.argmax())])
        if words == before:
            break
    return [words[place] for place in sorted(words)]


def _gain(atoms: Tensor, rest: Tensor, weights: Tensor) -> Tensor:
    """Return how much each atom (n, heads, units) would explain of what is left (heads, tokens, units)."""
    sizes = atoms.norm(dim=-1)
    along = torch.einsum("nhu,hmu->nhm", atoms, rest) / sizes.clamp(min=TINY)[..., None]
    gain: Tensor = (along.square() * (sizes > 1e-6)[..., None] * weights).sum(dim=(1, 2))
    return gain


def _basis(pairs: Pairs, numbers: Sequence[int]) -> Tensor:
    """Return orthonormal columns (heads, units, words) of the span of some pairs."""
    basis: Tensor = torch.linalg.qr(pairs.atoms[list(numbers)].permute(1, 2, 0))[0]
    return basis


def _off(rows: Tensor, basis: Tensor) -> Tensor:
    """Return rows (heads, n, units) without their share of a basis."""
    return rows - (rows @ basis) @ basis.mT
