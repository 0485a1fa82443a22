"""All batches of a small world, searched for one with the same gradient: meeting in the middle.

What it gains: the answer whether another valid batch has exactly this gradient, where examples are few.
Paper: Suliman et al., Towards a Re-evaluation of Data Forging Attacks in Practice (2024), table IV, who
    enumerate all batches and leave 11 of 25 settings open. A batch's gradient is a sum over examples, so
    pairs are matched with pairs: the square root of the work.
Assumes: some thousand possible examples (data=tiny), batches of at most five.
Caught by: nothing, where it finds one; it hardly does.
"""

from collections.abc import Iterator
from math import comb

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from fedsim.core.challenges import Challenge
from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Forgery
from fedsim.core.settings import whole
from fedsim.core.training import Batch, exact_levels

Values = NDArray[np.float64]
Ranks = NDArray[np.int64]
SAME = 1e-11  # of the largest gradient of an example: equal but for rounding
LARGEST = 5  # examples in a batch
TABLE = 28  # bits of the filter's keys: 256 MB


class BruteForce(Forgery):
    """Another batch of the same examples with exactly the same gradient, or the word that there is none."""

    pixels = "uint8"

    def __init__(self, *, most: int = 20_000) -> None:
        """Set how many examples to take on at most."""
        self.most = whole("forgery.most", most, 2)

    def forge(self, challenge: Challenge) -> Batch:
        """Search all other batches; complain if none is found."""
        size = len(challenge.batch.labels)
        number = size + len(challenge.owned)
        if size > LARGEST or number > self.most:
            raise FedsimError(
                f"forgery=[brute_force]: expected batches of at most {LARGEST} from at most {self.most} "
                f"examples, got {size} from {number}. Remedy: data=tiny, a smaller proof.batch_size."
            )
        others = challenge.examples(challenge.owned)
        images = torch.cat([challenge.batch.images, others.images.to(challenge.batch.images)])
        labels = torch.cat([challenge.batch.labels, others.labels])
        gradients = example_gradients(challenge.model, images, labels)
        unwanted = set(challenge.unwanted.tolist())
        equal = same_sum(gradients, tuple(range(size)))
        found = next((members for members in equal if not unwanted & set(members)), None)
        if found is None:
            rest = " without the unwanted examples" if unwanted else ""
            raise FedsimError(f"none of the other {comb(number, size) - 1:,} batches{rest} has this gradient")
        places = torch.tensor(found)
        return Batch(images=images[places], labels=labels[places])


def example_gradients(model: nn.Module, images: Tensor, labels: Tensor) -> Values:
    """Return the gradient of each example, a row each, in float64."""
    weights = {name: parameter.detach().double() for name, parameter in model.named_parameters()}
    buffers = {name: buffer.double() for name, buffer in model.named_buffers()}

    def loss(now: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        return functional.cross_entropy(functional_call(model, (now, buffers), (image[None],)), label[None])

    found = vmap(grad(loss), in_dims=(None, 0, 0))(weights, exact_levels(images), labels)
    return torch.cat([tensor.flatten(1) for tensor in found.values()], dim=1).numpy()


def same_sum(gradients: Values, wanted: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Give the other sets of as many rows that have the same sum as the wanted ones.

    Sums are compared along one random direction first. Of a set, its last member is tried in turn (where the
    size is odd), the rest is split into two halves: one is looked up for each of the other.
    """
    size, own = len(wanted), tuple(sorted(wanted))
    heights, near = _heights(gradients, size)
    goal = float(heights[list(wanted)].sum())
    half = size // 2
    halves = subset_sums(heights, half) if half else np.zeros(1)
    table = Filter(halves, near)
    lasts = range(len(heights)) if size % 2 else (None,)
    seen = {own}
    for last in lasts:
        # The last member is the one with the highest number: halves come in order of theirs.
        count = len(halves) if last is None else (comb(last, half) if half else 1)
        left = goal - (0.0 if last is None else heights[last])
        for one, other in table.matches(left - halves[:count]):
            if other >= count:
                continue
            members = (*subset(one, half), *subset(other, half), *(() if last is None else (last,)))
            chosen = tuple(sorted(members))
            if len(set(chosen)) == size and chosen not in seen and _equal(gradients, chosen, own):
                seen.add(chosen)
                yield chosen


def colliding(gradients: Values, size: int) -> tuple[int, int]:
    """Return how many batches share their gradient with another, of all batches, and how many there are."""
    return sum(1 for _ in twins(gradients, size)), comb(len(gradients), size)


def twins(gradients: Values, size: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Give every batch that shares its gradient with another, and one that it shares it with."""
    heights, near = _heights(gradients, size)
    sums = subset_sums(heights, size)
    order = np.argsort(sums, kind="stable")
    close = np.diff(sums[order]) <= near
    starts = np.flatnonzero(close & ~np.concatenate([[False], close[:-1]]))
    for start in starts:  # runs of equal heights: compare their whole gradients
        end = start + 1
        while end < len(close) and close[end]:
            end += 1
        run = [subset(rank, size) for rank in order[start : end + 1]]
        rows = np.stack([gradients[list(members)].sum(axis=0) for members in run])
        same = np.abs(rows[:, None] - rows[None]).max(axis=2) <= SAME * size * np.abs(gradients).max()
        np.fill_diagonal(same, val=False)
        for place in np.flatnonzero(same.any(axis=1)):
            yield run[place], run[int(same[place].argmax())]


def _heights(gradients: Values, size: int) -> tuple[Values, float]:
    """Return gradients along one random direction, and how near sums of so many must be to be equal."""
    direction = np.random.default_rng(0).normal(size=gradients.shape[1])
    heights = gradients @ (direction / np.linalg.norm(direction))
    return heights, SAME * max(float(np.abs(heights).max()), 1e-300) * size


class Filter:
    """Finds which of many queries are among values, to a tolerance: hashed cells first, then a search."""

    def __init__(self, values: Values, near: float) -> None:
        """Enter the values, and where a value lies at the edge of a cell the next cell too."""
        self.near, self.cell = near, 4 * near
        bits = min(TABLE, max(10, int(np.log2(len(values))) + 7))
        self.mask = (1 << bits) - 1
        self.table = np.zeros(1 << bits, dtype=bool)
        for shift in (-near, near):
            self.table[self._keys(values + shift)] = True
        self.order = np.argsort(values, kind="stable")
        self.sorted = values[self.order]

    def _keys(self, values: Values) -> Ranks:
        return np.floor(values * (1 / self.cell)).astype(np.int64) & self.mask

    def matches(self, queries: Values) -> Iterator[tuple[int, int]]:
        """Give (place of the query, place of a value equal to it)."""
        places = np.flatnonzero(self.table[self._keys(queries)])
        first = np.searchsorted(self.sorted, queries[places] - self.near, "left")
        after = np.searchsorted(self.sorted, queries[places] + self.near, "right")
        for row in np.flatnonzero(after > first):
            for value in range(first[row], after[row]):
                yield int(places[row]), int(self.order[value])


def subset_sums(values: Values, size: int) -> Values:
    """Return the sums of all subsets of a size, ordered by their highest member, then the next."""
    sums = values
    for members in range(2, size + 1):
        parts = [values[last] + sums[: comb(last, members - 1)] for last in range(members - 1, len(values))]
        sums = np.concatenate(parts) if parts else np.zeros(0)
    return sums


def subset(rank: int, size: int) -> tuple[int, ...]:
    """Return the members of the subset at a place of that order."""
    members, left = list[int](), int(rank)
    for chosen in range(size, 0, -1):
        member = chosen - 1
        low, high = member, left + chosen  # comb(high, chosen) > left
        while low < high:
            member = (low + high + 1) // 2
            low, high = (member, high) if comb(member, chosen) <= left else (low, member - 1)
        members.append(low)
        left -= comb(low, chosen)
    return tuple(reversed(members))


def _equal(gradients: Values, one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    gap = gradients[list(one)].sum(axis=0) - gradients[list(other)].sum(axis=0)
    return bool(np.abs(gap).max() <= SAME * len(one) * np.abs(gradients).max())
