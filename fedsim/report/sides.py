"""Texts and rows, true and guessed, side by side with their differences marked."""

from dataclasses import dataclass

from torch import Tensor

from fedsim.core.inputs import Inputs, Row, Tokens
from fedsim.core.types import Reconstruction, Truth
from fedsim.metrics.row_matching import matched_rows, right_cells
from fedsim.metrics.text_matching import texts_of

SHOWN = 16  # texts or rows of a batch


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A piece of a text or a cell of a row, and whether the guess has it right; None: nobody knows."""

    words: str
    right: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Side:
    """One example: what it is, and what was guessed; the true one is empty where it is not known."""

    true: tuple[Cell, ...]
    guessed: tuple[Cell, ...]


@dataclass(frozen=True, kw_only=True)
class Sides:
    """Examples of one batch, and the names of their columns, if they have any."""

    title: str
    columns: tuple[str, ...]
    sides: tuple[Side, ...]


def sides_of(inputs: Inputs | None, guess: Reconstruction, truth: Truth | None, title: str) -> Sides | None:
    """Return some examples of a batch beside their guesses; None: there are no texts or rows to show."""
    if isinstance(inputs, Tokens) and guess.tokens is not None:
        pairs = None if truth is None else texts_of(guess, truth)
        guessed = guess.tokens if pairs is None else pairs[0]
        true = [None] * len(guessed) if pairs is None else list(pairs[1])
        shown = zip(true[:SHOWN], guessed[:SHOWN], strict=True)
        return Sides(title=title, columns=(), sides=tuple(_texts(inputs, *pair) for pair in shown))
    if isinstance(inputs, Row) and guess.images is not None:
        rows = guess.images if truth is None else matched_rows(guess, truth)
        if rows is None or rows[0].numel() != inputs.shape[2]:
            return None
        known = None if truth is None else inputs.cells(truth.images[:SHOWN])
        names = tuple(column.name for column in inputs.columns)
        right = None if truth is None else right_cells(guess, truth)
        return Sides(title=title, columns=names, sides=_rows(inputs.cells(rows[:SHOWN]), known, right))
    return None


def _texts(form: Tokens, true: Tensor | None, guessed: Tensor) -> Side:
    truly = [] if true is None else true.tolist()
    told = [
        Cell(words=_piece(form, token), right=None if true is None else token == truly[place])
        for place, token in enumerate(guessed.tolist())
        if token not in form.special
    ]
    return Side(
        true=tuple(Cell(words=_piece(form, t)) for t in truly if t not in form.special), guessed=tuple(told)
    )


def _piece(form: Tokens, token: int) -> str:
    """Return a piece as it stands in its text: with a blank before it where a word begins."""
    words = form.words([token])[0]
    if form.blank:
        return words.replace(form.blank, " ")
    return words.removeprefix("##") if words.startswith("##") else f" {words}"


def _rows(guessed: list[list[str]], true: list[list[str]] | None, right: Tensor | None) -> tuple[Side, ...]:
    if true is None or right is None:
        return tuple(Side(true=(), guessed=tuple(Cell(words=cell) for cell in row)) for row in guessed)
    sides = list[Side]()
    for row, own, hits in zip(guessed, true, right.tolist(), strict=False):  # as many as are shown
        cells = (Cell(words=cell, right=hit) for cell, hit in zip(row, hits, strict=True))
        sides.append(Side(true=tuple(Cell(words=cell) for cell in own), guessed=tuple(cells)))
    return tuple(sides)
