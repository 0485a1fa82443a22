"""Relative error of embeddings that were recovered example by example."""

from fedsim.core.interfaces import Metric
from fedsim.core.types import Reconstruction, Score, Truth
from fedsim.metrics.class_rows import match_rows


class EmbeddingError(Metric):
    """Relative error of embeddings recovered example by example, optimally matched; 0 is equal."""

    highest = False
    title = "error of embeddings"
    unit = "relative error"

    def score(self, guess: Reconstruction, truth: Truth) -> Score | None:
        """Score the examples in their best order; one missing has an error of 1, as has one too many."""
        if guess.embeddings is None or truth.embeddings is None or guess.embedding_layer is None:
            return None
        true = truth.embeddings.double()
        gaps = (match_rows(guess.embeddings.double(), true) - true).norm(dim=1)
        errors = gaps / true.norm(dim=1).clamp(min=1e-300)
        extra = max(0, len(guess.embeddings) - len(true))
        return Score(
            metric="embedding_error",
            value=float((errors.sum() + extra) / (len(true) + extra)),
            per_example=tuple(errors.tolist()),
        )
