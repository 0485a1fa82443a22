"""Cosine similarity of recovered embeddings with the true ones.

Paper: Ma et al., Instance-wise Batch Label Restoration via Gradients in Federated Learning (ICLR 2023).
"""

from fedsim.core.interfaces import Metric
from fedsim.core.types import Reconstruction, Score, Truth
from fedsim.metrics.class_rows import cosine_score, example_cosine_score


class EmbeddingCosine(Metric):
    """Cosine of recovered embeddings: class-wise means, or example by example; 1 is equal up to scale."""

    bounded = True
    title = "likeness of embeddings"
    unit = "cosine"
    paper = "Ma et al., Instance-wise Batch Label Restoration via Gradients in Federated Learning (ICLR 2023)"

    def score(self, guess: Reconstruction, truth: Truth) -> Score | None:
        """Score the classes that are in the batch, or the examples in their best order."""
        if guess.embedding_layer is None:
            return cosine_score("embedding_cosine", guess.embeddings, truth.embeddings, truth.labels)
        if guess.embeddings is None or truth.embeddings is None:
            return None
        return example_cosine_score("embedding_cosine", guess.embeddings, truth.embeddings)
