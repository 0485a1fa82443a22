"""What the bias gradient of the logits says of the counts of classes: K g_j = sum p_j - n_j."""

import torch
from torch import Tensor

UNCERTAIN = (0.02, 0.05, 0.1, 0.2, 0.4)  # of an example: what the subtraction of those found may leave
DEVIATIONS = 5.0  # of noise in a bias gradient that a count must stand out of


def at_least(biases: Tensor, size: int, noise: float = 0.0) -> Tensor:
    """Return how many of `size` examples each class has at least, by K g and the deviation of its noise."""
    for slack in UNCERTAIN:  # more than `size` cannot be: then it was rounding
        least = (-biases - slack - DEVIATIONS * noise).ceil().clamp(min=0).long()
        if int(least.sum()) <= size:
            return least
    return torch.zeros_like(least)


def nearest_counts(estimate: Tensor, fewest: Tensor, total: int) -> Tensor:
    """Return whole counts with this total that are near the estimate, and no fewer than said."""
    counts = fewest.clone()
    for _ in range(total - int(fewest.sum())):
        counts[(estimate - counts).argmax()] += 1
    return counts
