"""Pairing guessed texts with true ones: a batch has no order, so the best one-to-one pairing counts."""

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from fedsim.core.inputs import Tokens
from fedsim.core.types import Reconstruction, Truth


def texts_of(guess: Reconstruction, truth: Truth) -> tuple[Tensor, Tensor, Tokens] | None:
    """Return guessed texts paired with true ones (N, length), and what they are; None: no texts are told.

    A true text without a guess gets one of which nothing is known (-1).
    """
    if guess.tokens is None or not isinstance(truth.inputs, Tokens):
        return None
    form, true = truth.inputs, truth.images
    guessed = guess.tokens[:, : form.length]
    missing = max(0, len(true) - len(guessed))
    guessed = torch.cat([guessed, torch.full((missing, form.length), -1)])
    words = told_words(true, form)
    right = ((guessed[None] == true[:, None]) & words[:, None]).sum(dim=2)  # (true, guessed)
    whole = (guessed[None] == true[:, None]).all(dim=2)
    _, columns = linear_sum_assignment((right + whole).numpy(), maximize=True)
    return guessed[torch.from_numpy(columns)], true, form


def told_words(texts: Tensor, form: Tokens) -> Tensor:
    """Say of every place whether an attack has to tell it: marks and padding are known to all."""
    return ~torch.isin(texts, torch.tensor(sorted(form.special)))


def surplus(guess: Reconstruction, truth: Truth) -> float:
    """Return the share that is left of a score when there are more guesses than texts: guesses cost."""
    number = 0 if guess.tokens is None else len(guess.tokens)
    return len(truth.images) / max(len(truth.images), number)
