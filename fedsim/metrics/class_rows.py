"""Recovered class-wise vectors against the true class means, for the classes that are in the batch."""

import torch
from torch import Tensor
from torch.nn import functional

from fedsim.types import Score


def cosine_score(name: str, guessed: Tensor | None, rows: Tensor | None, labels: Tensor) -> Score | None:
    """Score one guessed vector a class by its cosine with the mean of the class's true rows.

    The blind guess is a vector of equal entries: non-negative vectors are all somewhat alike.
    """
    if guessed is None or rows is None:
        return None
    present = torch.unique(labels)
    if len(guessed) <= int(present.max()):
        return None  # not class-wise
    means = torch.stack([rows[labels == label].mean(dim=0) for label in present])
    cosines = functional.cosine_similarity(guessed[present].float(), means, dim=1)
    blind = functional.cosine_similarity(torch.ones_like(means), means, dim=1)
    return Score(
        metric=name,
        value=float(cosines.mean()),
        blind=float(blind.mean()),
        per_example=tuple(cosines.tolist()),
    )
