"""What an input is: an image unless a task says otherwise, a sequence of tokens, or a row of a table.

Everything else takes inputs as tensors and asks nothing: tokens are int64 (N, length), a row is a line of
float32 pixels (N, 1, 1, width) in [0, 1]: of each column its share of a range, or a pixel for each category.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fedsim.core.errors import FedsimError


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """A sequence of tokens: which there are, how many fit, and which only mark places."""

    vocabulary: tuple[str, ...]
    length: int
    padding: int = 0  # fills up what is shorter; models do not look at it
    begin: int | None = None  # stands before every text; None: nothing does
    end: int | None = None  # stands behind it
    continued: bool = False  # labels are the next tokens, at every place
    blank: str = ""  # a character that stands for a blank; empty: pieces that begin with ## go on with a word

    def __post_init__(self) -> None:
        if self.length < 1 or len(self.vocabulary) < 2:
            raise FedsimError(
                "tokens: expected a length of at least 1 and a vocabulary of at least 2, "
                f"got {self.length} and {len(self.vocabulary)}"
            )
        for name in ("padding", "begin", "end"):
            place = getattr(self, name)
            if place is not None and not 0 <= place < len(self.vocabulary):
                raise FedsimError(
                    f"tokens.{name}: expected a place among {len(self.vocabulary)} tokens, got {place}"
                )

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return (self.length,)

    @property
    def special(self) -> frozenset[int]:
        """Tokens that everybody knows to be there: no attack is praised for them."""
        return frozenset(t for t in (self.padding, self.begin, self.end) if t is not None)

    def words(self, sequence: Sequence[int]) -> list[str]:
        """Return the pieces of a text, without marks; what was not recovered is …"""
        return [
            self.vocabulary[token] if 0 <= token < len(self.vocabulary) else "…"
            for token in sequence
            if token not in self.special
        ]

    def text(self, sequence: Sequence[int]) -> str:
        """Return a text as a reader would write it."""
        pieces = self.words(sequence)
        if self.blank:
            return "".join(pieces).replace(self.blank, " ").strip()
        return " ".join(pieces).replace(" ##", "").strip()

    def blind(self, public: Tensor) -> list[Tensor]:
        """Return guesses that need no gradient: the most frequent token at each place, and public texts."""
        if not len(public):
            return [torch.full((1, self.length), self.padding)]
        counts = torch.zeros(self.length, len(self.vocabulary), dtype=torch.int64)
        counts.scatter_add_(1, public.mT.contiguous(), torch.ones_like(public.mT))
        often = counts.argmax(dim=1)
        counts[:, sorted(self.special)] = 0
        words = torch.where(
            torch.isin(often, torch.tensor(sorted(self.special))), often, counts.argmax(dim=1)
        )
        return [often[None], words[None], counts.sum(dim=0).argmax().expand(1, self.length), public]


@dataclass(frozen=True)
class Number:
    """A numeric column: the share of its published range."""

    name: str
    low: float
    high: float
    logarithmic: bool = False  # for amounts whose largest value dwarfs the usual ones
    whole: bool = False  # values are whole numbers

    def share(self, value: float) -> float:
        """Return where a value lies between the ends of the range."""
        scale = math.log1p if self.logarithmic else float
        return (scale(value) - scale(self.low)) / (scale(self.high) - scale(self.low))

    def value(self, share: float) -> float:
        """Return the value at a share of the range."""
        if self.logarithmic:
            low, high = math.log1p(self.low), math.log1p(self.high)
            found = math.expm1(low + share * (high - low))
        else:
            found = self.low + share * (self.high - self.low)
        return float(round(found)) if self.whole else found


@dataclass(frozen=True)
class Choice:
    """A categorical column: one pixel for each of its categories."""

    name: str
    categories: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a table: its columns in order."""

    columns: tuple[Number | Choice, ...]

    def __post_init__(self) -> None:
        if not self.columns:
            raise FedsimError("row: expected at least one column, got none")

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return (1, 1, self.places[-1][1])

    @property
    def places(self) -> tuple[tuple[int, int], ...]:
        """Where the pixels of each column begin and end."""
        widths = [1 if isinstance(column, Number) else len(column.categories) for column in self.columns]
        ends = list(itertools.accumulate(widths))
        return tuple((end - width, end) for width, end in zip(widths, ends, strict=True))

    @property
    def groups(self) -> tuple[tuple[int, int], ...]:
        """Where the pixels of each categorical column begin and end."""
        pairs = zip(self.columns, self.places, strict=True)
        return tuple(place for column, place in pairs if isinstance(column, Choice))

    def cells(self, rows: Tensor) -> list[list[str]]:
        """Return rows as a reader would write them: numbers, and the category with the largest pixel."""
        shown = []
        for row in rows.detach().reshape(len(rows), -1).tolist():
            cells = []
            for column, (first, end) in zip(self.columns, self.places, strict=True):
                if isinstance(column, Number):
                    cells.append(f"{column.value(min(1.0, max(0.0, row[first]))):.6g}")
                else:
                    cells.append(column.categories[max(range(end - first), key=lambda i: row[first + i])])
            shown.append(cells)
        return shown

    def choices(self, rows: Tensor) -> Tensor:
        """Return rows that keep to the form: numbers within the range, one category of each column."""
        flat = rows.reshape(len(rows), -1).clamp(0, 1)
        for first, end in self.groups:
            chosen = functional.one_hot(flat[:, first:end].argmax(dim=1), end - first).to(flat)
            flat = torch.cat([flat[:, :first], chosen, flat[:, end:]], dim=1)
        return flat.view(rows.shape)

    def blind(self, public: Tensor) -> list[Tensor]:
        """Return a guess that needs no gradient: each column's median or most frequent category."""
        if not len(public):
            return []
        middle = public.median(dim=0, keepdim=True).values
        frequent = public.mean(dim=0, keepdim=True)
        flat, means = middle.reshape(1, -1).clone(), frequent.reshape(1, -1)
        for first, end in self.groups:
            flat[:, first:end] = means[:, first:end]
        return [self.choices(flat.view(middle.shape))]


Inputs = Tokens | Row  # None in a task: an image


def inputs_from(told: Mapping[str, Any]) -> Inputs:
    """Return tokens or rows from plain values, as dataclasses.asdict makes them."""
    if "vocabulary" in told:
        return Tokens(**{**told, "vocabulary": tuple(told["vocabulary"])})
    columns = [
        Choice(column["name"], tuple(column["categories"])) if "categories" in column else Number(**column)
        for column in told["columns"]
    ]
    return Row(columns=tuple(columns))
