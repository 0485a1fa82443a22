"""Label number accuracy.

Paper: Ma et al., Instance-wise Batch Label Restoration via Gradients in Federated Learning (ICLR 2023).
"""

from fedsim.core.interfaces import Metric
from fedsim.core.types import Reconstruction, Score, Truth
from fedsim.metrics.label_counts import baseline_counts, count_accuracy, true_counts


class LnAcc(Metric):
    """Label number accuracy: share of all classes whose number of examples is exactly right."""

    def score(self, guess: Reconstruction, truth: Truth) -> Score | None:
        """Score the counts of classes."""
        if guess.class_counts is None:
            return None
        true = true_counts(truth, len(guess.class_counts))
        baseline = count_accuracy(baseline_counts(int(true.sum()), len(true)), true)
        return Score(metric="lnacc", value=count_accuracy(guess.class_counts, true), baseline=baseline)
