"""Every score beside what the best guess without a gradient gets."""

import dataclasses

from fedsim.core.interfaces import Metric
from fedsim.core.prior import Prior
from fedsim.core.types import Reconstruction, Score, Truth


def scored(metric: Metric, guess: Reconstruction, truth: Truth, prior: Prior | None) -> Score | None:
    """Score a guess, and with the same metric the blind guesses; a baseline of the metric's own stays.

    prior: None where it could not be had, as the faults say.
    """
    score = metric.score(guess, truth)
    if score is None or score.baseline is not None or prior is None:
        return score
    blind = [metric.score(other, truth) for other in metric.blind(prior)]
    values = [other.value for other in blind if other is not None]
    best = max if metric.highest else min
    return dataclasses.replace(score, baseline=best(values) if values else None)
