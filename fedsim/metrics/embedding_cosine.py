"""Cosine similarity of recovered class-wise mean embeddings into the last layer.

Paper: Ma et al., Instance-wise Batch Label Restoration via Gradients in Federated Learning (ICLR 2023).
"""

from fedsim.interfaces import Metric
from fedsim.metrics.class_rows import cosine_score
from fedsim.types import Reconstruction, Score, Truth


class EmbeddingCosine(Metric):
    """Cosine similarity of recovered class-wise mean embeddings; 1 is equal up to scale."""

    def score(self, guess: Reconstruction, truth: Truth) -> Score | None:
        """Score the classes that are in the batch."""
        return cosine_score("embedding_cosine", guess.embeddings, truth.embeddings, truth.labels)
