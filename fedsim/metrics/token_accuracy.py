"""Tokens that were recovered at their places."""

from fedsim.core.interfaces import Metric
from fedsim.core.types import Reconstruction, Score, Truth
from fedsim.metrics.text_matching import surplus, texts_of, told_words


class TokenAccuracy(Metric):
    """Share of the batch's tokens that are right at their place, texts optimally matched; without marks."""

    bounded = True
    title = "token accuracy"
    unit = "share of tokens"

    def score(self, guess: Reconstruction, truth: Truth) -> Score | None:
        """Count them."""
        if (found := texts_of(guess, truth)) is None:
            return None
        guessed, true, form = found
        words = told_words(true, form)
        right = ((guessed == true) & words).sum() / words.sum().clamp(min=1)
        return Score(metric="token_accuracy", value=float(right) * surplus(guess, truth))
