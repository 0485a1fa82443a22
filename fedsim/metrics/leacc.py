"""Label existence accuracy.

Paper: Ma et al., Instance-wise Batch Label Restoration via Gradients in Federated Learning (ICLR 2023).
"""

from fedsim.core.interfaces import Metric
from fedsim.core.types import Reconstruction, Score, Truth
from fedsim.metrics.label_counts import baseline_counts, presence_accuracy, true_counts


class LeAcc(Metric):
    """Label existence accuracy: share of all classes whose presence in the batch is right."""

    def score(self, guess: Reconstruction, truth: Truth) -> Score | None:
        """Score the presence of classes."""
        found = guess.class_presence if guess.class_counts is None else guess.class_counts
        if found is None:
            return None
        true = true_counts(truth, len(found))
        baseline = presence_accuracy(baseline_counts(int(true.sum()), len(found)), true)
        return Score(metric="leacc", value=presence_accuracy(found, true), baseline=baseline)
