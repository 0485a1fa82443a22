"""Instance recall: what label number accuracy hides behind absent classes."""

from collections.abc import Sequence

from fedsim.core.interfaces import Metric
from fedsim.core.prior import Prior
from fedsim.core.types import Reconstruction, Score, Truth
from fedsim.metrics.label_counts import blind_counts, instance_recall, restored, true_counts


class IRec(Metric):
    """Instance recall: share of the batch's examples whose label was restored; labels beyond K cost."""

    bounded = True
    title = "labels restored"
    unit = "share of examples"

    def score(self, guess: Reconstruction, truth: Truth) -> Score | None:
        """Score the restored examples."""
        if guess.class_counts is None:
            return None
        true = true_counts(truth, len(guess.class_counts))
        return Score(metric="irec", value=instance_recall(guess.class_counts, true))

    def blind(self, prior: Prior) -> Sequence[Reconstruction]:
        """Return the counts that restore most examples on average."""
        return blind_counts(prior, restored)
