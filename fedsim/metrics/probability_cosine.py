"""Cosine similarity of recovered class-wise mean probabilities.

Paper: Ma et al., Instance-wise Batch Label Restoration via Gradients in Federated Learning (ICLR 2023).
"""

from fedsim.core.interfaces import Metric
from fedsim.core.types import Reconstruction, Score, Truth
from fedsim.metrics.class_rows import cosine_score


class ProbabilityCosine(Metric):
    """Cosine similarity of recovered class-wise mean probabilities; 1 is equal up to scale."""

    bounded = True
    title = "likeness of probabilities"
    unit = "cosine"
    paper = "Ma et al., Instance-wise Batch Label Restoration via Gradients in Federated Learning (ICLR 2023)"

    def score(self, guess: Reconstruction, truth: Truth) -> Score | None:
        """Score the classes that are in the batch."""
        return cosine_score("probability_cosine", guess.probabilities, truth.probabilities, truth.labels)
