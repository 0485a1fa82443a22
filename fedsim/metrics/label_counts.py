"""Label metrics as functions of class counts, and the best counts that need no gradient."""

import functools
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from fedsim.core.prior import Prior
from fedsim.core.types import Reconstruction, Truth

# Of guessed and true counts, class by class; a metric sums it up.
Agreement = Callable[[Tensor, Tensor], Tensor]
FEW, MOST = 5000, 30_000_000  # examples; classes times examples: so many numbers are held


def true_counts(truth: Truth, num_classes: int) -> Tensor:
    """Return how many examples of each class the private batch holds."""
    return truth.labels[truth.labels >= 0].bincount(minlength=num_classes)


def same_presence(guessed: Tensor, true: Tensor) -> Tensor:
    """Say of every class whether its presence is right."""
    return (guessed > 0) == (true > 0)


def same_count(guessed: Tensor, true: Tensor) -> Tensor:
    """Say of every class whether its count is exactly right; absent classes count too."""
    return guessed == true


def restored(guessed: Tensor, true: Tensor) -> Tensor:
    """Return how many examples of each class were restored."""
    return torch.minimum(guessed, true).clamp(min=0)


def instance_recall(guessed: Tensor, true: Tensor) -> float:
    """Return the share of the batch's examples whose label was restored; labels guessed beyond K cost."""
    return float(restored(guessed, true).sum() / max(int(guessed.clamp(min=0).sum()), int(true.sum())))


def blind_counts(prior: Prior, agreement: Agreement) -> list[Reconstruction]:
    """Return the counts that agree most, on average, with the batches that the rules would draw.

    Where there are too many classes and examples to find them: the mean counts, or all in one class.
    """
    if prior.batches.shape[1] * prior.num_examples > MOST:
        return [guess for guess in prior.guesses() if guess.class_counts is not None]
    counts = torch.tensor(best_counts(prior.batches, prior.num_examples, agreement))
    return [Reconstruction(class_counts=counts, class_presence=counts > 0)]


@functools.lru_cache(maxsize=64)
def best_counts(batches: Tensor, total: int, agreement: Agreement) -> tuple[int, ...]:
    """Return the whole counts of a given sum that have the highest mean agreement with drawn batches (S, C).

    That mean is a sum over classes of a table of (class, count), so the best counts are found class after
    class, for every sum that the counts so far may have (as a knapsack is filled). A class takes one of the
    counts that were drawn of it; the rarest, which comes last, may take whatever is left of few.
    """
    order = batches.sum(dim=0).argsort(descending=True).tolist()
    reached = np.full(total + 1, -np.inf)
    reached[0] = 0.0
    choices = []
    for label in order:
        drawn = batches[:, label]
        is_last = label == order[-1] and total <= FEW
        counts = torch.arange(total + 1) if is_last else torch.unique(drawn)
        gains = agreement(counts[:, None], drawn[None, :]).double().mean(dim=1)
        best, chosen = np.full(total + 1, -np.inf), np.zeros(total + 1, dtype=np.int32)
        for count, gain in zip(counts.tolist(), gains.tolist(), strict=True):
            candidate = reached[: total + 1 - count] + gain
            better = candidate > best[count:]
            best[count:][better], chosen[count:][better] = candidate[better], count
        reached = best
        choices.append(chosen)
    found, left = [0] * len(order), total
    for label, chosen in zip(reversed(order), reversed(choices), strict=True):
        found[label] = int(chosen[left])
        left -= found[label]
    return tuple(found)
