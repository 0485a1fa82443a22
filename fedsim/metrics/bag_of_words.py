"""Which tokens are in the batch."""

import torch

from fedsim.core.inputs import Tokens
from fedsim.core.interfaces import Metric
from fedsim.core.types import Reconstruction, Score, Truth


class BagOfWords(Metric):
    """F1 of the set of tokens said to be in the batch; marks do not count."""

    bounded = True
    title = "bag of words"
    unit = "F1"

    def score(self, guess: Reconstruction, truth: Truth) -> Score | None:
        """Compare the sets."""
        if guess.token_presence is None or not isinstance(truth.inputs, Tokens):
            return None
        marks = torch.tensor(sorted(truth.inputs.special))
        true = torch.zeros(len(truth.inputs.vocabulary), dtype=torch.bool)
        true[truth.images] = True
        told = guess.token_presence.clone()
        told[marks] = true[marks] = False
        value = 2 * int((told & true).sum()) / max(1, int(told.sum()) + int(true.sum()))
        return Score(metric="bag_of_words", value=value)
