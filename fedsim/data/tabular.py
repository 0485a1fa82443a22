"""A made-up census table with the columns of Adult, for runs without its files."""

import torch
from torch import Generator, Tensor

from fedsim.core.inputs import Choice, Number
from fedsim.core.randomness import generator
from fedsim.core.settings import whole
from fedsim.data.adult import COLUMNS, table, table_pixels
from fedsim.data.images import ArrayImages, Dataset

_RICH = 0.25  # share of the second class, about Adult's
_TRAITS = 4  # hidden properties of a person, that columns have in common


def tabular(*, train_size: int = 2000, test_size: int = 500, noise: float = 0.5, seed: int = 0) -> Dataset:
    """Seeded rows in Adult's 108 pixels: mixed columns, two classes of 3 to 1 by a curved rule with noise."""
    whole("data.train_size", train_size, 8)
    whole("data.test_size", test_size, 8)
    rule = generator(seed, "rule")
    weights = [torch.randn(_TRAITS, _width(column), generator=rule) for column in COLUMNS]
    effects = [torch.randn(_width(column), generator=rule) for column in COLUMNS]
    halves = []
    for name, size in (("train", train_size), ("test", test_size)):
        random = generator(seed, name)
        rows = _draw(weights, size, random)
        halves.append((rows, _score(effects, rows) + noise * torch.randn(size, generator=random)))
    richest = torch.quantile(halves[0][1], 1 - _RICH)
    train, test = (
        ArrayImages(pixels=table_pixels(rows), labels=(scores > richest).long()) for rows, scores in halves
    )
    return table(train=train, test=test)


def _width(column: Number | Choice) -> int:
    return 1 if isinstance(column, Number) else len(column.categories)


def _draw(weights: list[Tensor], size: int, random: Generator) -> list[Tensor]:
    """Draw every column's shares or categories, which depend on a person's traits and on chance."""
    traits, drawn = torch.randn(size, _TRAITS, generator=random), list[Tensor]()
    for column, weight in zip(COLUMNS, weights, strict=True):
        lean = traits @ weight / _TRAITS**0.5
        if isinstance(column, Number):
            value = torch.sigmoid(lean[:, 0] + 0.5 * torch.randn(size, generator=random))
            # Few people have capital: such columns are zero but for the largest.
            drawn.append(value * (value > 0.8) if column.name.startswith("capital") else value)
        else:
            usual = -torch.arange(
                len(column.categories)
            ).log1p()  # the first categories are the frequent ones
            odds = torch.softmax(lean + 2 * usual, dim=1)
            drawn.append(torch.multinomial(odds, 1, generator=random)[:, 0])
    return drawn


def _score(effects: list[Tensor], rows: list[Tensor]) -> Tensor:
    """Add up effects of categories, bends of numbers, and products of neighbouring numbers."""
    total, before = torch.zeros(len(rows[0])), torch.ones(len(rows[0]))
    for column, effect, values in zip(COLUMNS, effects, rows, strict=True):
        if isinstance(column, Number):
            total += effect[0] * torch.sin(4 * values) + 2 * values * before
            before = values
        else:
            total += 0.5 * effect[values]
    return total
