"""Instance recall: what label number accuracy hides behind absent classes."""

from fedsim.core.interfaces import Metric
from fedsim.core.types import Reconstruction, Score, Truth
from fedsim.metrics.label_counts import baseline_counts, instance_recall, true_counts


class IRec(Metric):
    """Instance recall: share of the batch's examples whose label was restored."""

    def score(self, guess: Reconstruction, truth: Truth) -> Score | None:
        """Score the restored examples."""
        if guess.class_counts is None:
            return None
        true = true_counts(truth, len(guess.class_counts))
        baseline = instance_recall(baseline_counts(int(true.sum()), len(true)), true)
        return Score(metric="irec", value=instance_recall(guess.class_counts, true), baseline=baseline)
