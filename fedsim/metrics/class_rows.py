"""Recovered vectors against true ones: one a class, or one an example in any order."""

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn import functional

from fedsim.core.types import Score


def cosine_score(name: str, guessed: Tensor | None, rows: Tensor | None, labels: Tensor) -> Score | None:
    """Score one guessed vector a class by its cosine with the mean of the class's true rows."""
    if guessed is None or rows is None:
        return None
    present = torch.unique(labels)
    if len(guessed) <= int(present.max()):
        return None  # not class-wise
    means = torch.stack([rows[labels == label].mean(dim=0) for label in present])
    cosines = functional.cosine_similarity(guessed[present].float(), means, dim=1)
    return Score(metric=name, value=float(cosines.mean()), per_example=tuple(cosines.tolist()))


def example_cosine_score(name: str, guessed: Tensor, rows: Tensor) -> Score:
    """Score one guessed vector an example by its cosine with the true row that it is matched to.

    Rows without a guess count 0, and so does every guess beyond the number of rows.
    """
    cosines = functional.cosine_similarity(match_rows(guessed.float(), rows), rows, dim=1)
    number = max(len(guessed), len(rows))
    return Score(metric=name, value=float(cosines.sum() / number), per_example=tuple(cosines.tolist()))


def match_rows(guessed: Tensor, rows: Tensor) -> Tensor:
    """Order guessed vectors so that they are nearest to the true ones; zeros where there are too few."""
    missing = max(0, len(rows) - len(guessed))
    guessed = torch.cat([guessed, guessed.new_zeros(missing, guessed.shape[1])])
    _, columns = linear_sum_assignment(torch.cdist(rows.double(), guessed.double()).numpy())
    return guessed[torch.from_numpy(columns)]
