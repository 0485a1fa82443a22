"""Differential privacy of Gaussian noise, in closed form.

Papers: Dong, Roth and Su, Gaussian Differential Privacy (2019), for the trade-off mu between two outcomes;
Nasr et al., Tight Auditing of Differentially Private Machine Learning (2023), for its measurement.
"""

import math
from statistics import NormalDist

from scipy.special import betaincinv, log_ndtr

NORMAL = NormalDist()


def epsilon_of(mu: float, delta: float) -> float:
    """Return epsilon at this delta where two outcomes are as far apart as Gaussians whose means differ by mu.

    So many rounds of noise of deviation s on what differs by at most d: mu = sqrt(rounds) d / s.
    """
    if mu <= 0:
        return 0.0

    def excess(epsilon: float) -> float:
        """Return delta at this epsilon, beyond the one that is asked for."""
        within = math.exp(log_ndtr(-epsilon / mu + mu / 2))
        beyond = math.exp(epsilon + log_ndtr(-epsilon / mu - mu / 2))
        return within - beyond - delta

    if excess(0.0) <= 0:
        return 0.0
    low, high = 0.0, mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta)) + 1
    for _ in range(100):  # bisected: scipy's solvers take a second to import, in every process
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return high


def at_most(errors: int, trials: int, confidence: float) -> float:
    """Return the rate that so many errors speak for at most (Clopper and Pearson)."""
    return 1.0 if errors >= trials else float(betaincinv(errors + 1, trials - errors, confidence))


def least_epsilon(false_positives: float, false_negatives: float, delta: float) -> float:
    """Return the least epsilon that lets a test err so seldom, whatever the mechanism."""
    told = [
        math.log((1 - delta - one) / other)
        for one, other in ((false_negatives, false_positives), (false_positives, false_negatives))
        if other > 0 and 1 - delta - one > other
    ]
    return max(told, default=0.0)


def least_mu(false_positives: float, false_negatives: float) -> float:
    """Return the least mu that lets a test err so seldom, if the mechanism's noise is Gaussian."""
    if not (0 < false_positives < 1 and 0 < false_negatives < 1):
        return 0.0
    return max(0.0, -NORMAL.inv_cdf(false_positives) - NORMAL.inv_cdf(false_negatives))
