"""Label existence accuracy.

Paper: Ma et al., Instance-wise Batch Label Restoration via Gradients in Federated Learning (ICLR 2023).
"""

from collections.abc import Sequence

from fedsim.core.interfaces import Metric
from fedsim.core.prior import Prior
from fedsim.core.types import Reconstruction, Score, Truth
from fedsim.metrics.label_counts import blind_counts, same_presence, true_counts


class LeAcc(Metric):
    """Label existence accuracy: share of all classes whose presence in the batch is right."""

    bounded = True
    title = "label existence accuracy"
    unit = "share of classes"
    paper = "Ma et al., Instance-wise Batch Label Restoration via Gradients in Federated Learning (ICLR 2023)"

    def score(self, guess: Reconstruction, truth: Truth) -> Score | None:
        """Score the presence of classes."""
        found = guess.class_presence if guess.class_counts is None else guess.class_counts
        if found is None:
            return None
        right = same_presence(found, true_counts(truth, len(found)))
        return Score(metric="leacc", value=float(right.double().mean()))

    def blind(self, prior: Prior) -> Sequence[Reconstruction]:
        """Return the counts that are most often right about presence."""
        return blind_counts(prior, same_presence)
