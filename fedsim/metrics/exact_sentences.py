"""Texts that were recovered without a fault."""

from fedsim.core.interfaces import Metric
from fedsim.core.types import Reconstruction, Score, Truth
from fedsim.metrics.text_matching import surplus, texts_of


class ExactSentences(Metric):
    """Share of the batch's texts of which every token is right and at its place."""

    bounded = True
    title = "exact sentences"
    unit = "share of texts"

    def score(self, guess: Reconstruction, truth: Truth) -> Score | None:
        """Count them."""
        if (found := texts_of(guess, truth)) is None:
            return None
        right = (found[0] == found[1]).all(dim=1).double()
        value = float(right.mean()) * surplus(guess, truth)
        return Score(metric="exact_sentences", value=value, per_example=tuple(right.tolist()))
