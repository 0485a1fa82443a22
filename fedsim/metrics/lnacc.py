"""Label number accuracy.

Paper: Ma et al., Instance-wise Batch Label Restoration via Gradients in Federated Learning (ICLR 2023).
"""

from collections.abc import Sequence

from fedsim.core.interfaces import Metric
from fedsim.core.prior import Prior
from fedsim.core.types import Reconstruction, Score, Truth
from fedsim.metrics.label_counts import blind_counts, same_count, true_counts


class LnAcc(Metric):
    """Label number accuracy: share of all classes whose number of examples is exactly right."""

    bounded = True
    title = "label number accuracy"
    unit = "share of classes"
    paper = "Ma et al., Instance-wise Batch Label Restoration via Gradients in Federated Learning (ICLR 2023)"

    def score(self, guess: Reconstruction, truth: Truth) -> Score | None:
        """Score the counts of classes."""
        if guess.class_counts is None:
            return None
        right = same_count(guess.class_counts, true_counts(truth, len(guess.class_counts)))
        return Score(metric="lnacc", value=float(right.double().mean()))

    def blind(self, prior: Prior) -> Sequence[Reconstruction]:
        """Return the counts that are most often exactly right."""
        return blind_counts(prior, same_count)
