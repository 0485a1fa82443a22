"""Which tokens are in the batch, or which categories of a table's columns."""

import torch
from torch import Tensor

from fedsim.core.inputs import Row, Tokens
from fedsim.core.interfaces import Metric
from fedsim.core.types import Reconstruction, Score, Truth


class BagOfWords(Metric):
    """F1 of the set of tokens, or of columns' categories, said to be in the batch; marks do not count."""

    bounded = True
    title = "bag of words"
    unit = "F1"

    def score(self, guess: Reconstruction, truth: Truth) -> Score | None:
        """Compare the sets."""
        if guess.token_presence is None or truth.inputs is None:
            return None
        true, counted = _present(truth.inputs, truth.images)
        true, told = true & counted, guess.token_presence & counted
        value = 2 * int((told & true).sum()) / max(1, int(told.sum()) + int(true.sum()))
        return Score(metric="bag_of_words", value=value)


def _present(form: Tokens | Row, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return what is in a batch, and what of it counts."""
    if isinstance(form, Tokens):
        true = torch.zeros(len(form.vocabulary), dtype=torch.bool)
        true[inputs] = True
        counted = torch.ones_like(true)
        counted[sorted(form.special)] = False
        return true, counted
    true = (inputs.flatten(1) > 0.5).any(dim=0)
    counted = torch.zeros_like(true)
    for first, end in form.groups:
        counted[first:end] = True
    return true, counted
