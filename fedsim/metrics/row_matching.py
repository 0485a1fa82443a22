"""Pairing guessed rows with true ones, and which of their cells are right."""

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from fedsim.core.inputs import Choice, Number, Row
from fedsim.core.types import Reconstruction, Truth

NEAR = 0.5 / 255  # of a column's range: within half of one of 256 levels a number is right


def right_cells(guess: Reconstruction, truth: Truth) -> Tensor | None:
    """Return (N, columns) whether the cells of the guess that is paired with each true row are right.

    None: no rows are told. A true row without a guess has none right.
    """
    paired = _paired(guess, truth)
    return None if paired is None else paired[0][torch.arange(len(paired[1])), paired[1]]


def matched_rows(guess: Reconstruction, truth: Truth) -> Tensor | None:
    """Return the guess that is paired with each true row; one that is missing is all zeros."""
    paired = _paired(guess, truth)
    if paired is None or guess.images is None:
        return None
    missing = max(0, len(truth.images) - len(guess.images))
    return torch.cat([guess.images, torch.zeros(missing, *guess.images.shape[1:])])[paired[1]]


def _paired(guess: Reconstruction, truth: Truth) -> tuple[Tensor, Tensor] | None:
    """Return (true, guessed, columns) whether cells are right, and the guess of each true row."""
    if guess.images is None or not isinstance(truth.inputs, Row):
        return None
    form, true = truth.inputs, truth.images.double().flatten(1)
    guessed = guess.images.detach().cpu().double().flatten(1)
    if guessed.shape[1] != true.shape[1]:
        return None
    right = torch.stack([_same(form, guessed, row) for row in true])
    missing = max(0, len(true) - len(guessed))
    right = torch.cat([right, torch.zeros(len(true), missing, right.shape[2], dtype=torch.bool)], dim=1)
    _, columns = linear_sum_assignment((right.sum(dim=2) + right.all(dim=2)).numpy(), maximize=True)
    return right, torch.from_numpy(columns)


def categorical(form: Row) -> Tensor:
    """Say of every column whether it is one of categories."""
    return torch.tensor([isinstance(column, Choice) for column in form.columns])


def surplus_rows(guess: Reconstruction, truth: Truth) -> float:
    """Return the share that is left of a score when there are more guesses than rows: guesses cost."""
    number = 0 if guess.images is None else len(guess.images)
    return len(truth.images) / max(len(truth.images), number)


def _same(form: Row, guessed: Tensor, row: Tensor) -> Tensor:
    """Return (guessed, columns) whether cells are those of a row."""
    cells = []
    for column, (first, end) in zip(form.columns, form.places, strict=True):
        if isinstance(column, Number):
            cells.append((guessed[:, first] - row[first]).abs() <= NEAR)
        else:
            cells.append(guessed[:, first:end].argmax(dim=1) == row[first:end].argmax())
    return torch.stack(cells, dim=1)
