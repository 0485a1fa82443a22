"""From real-valued class proportions to whole counts, with the batch size disclosed or not."""

from collections.abc import Callable

import torch
from torch import Tensor

from fedsim.core.errors import FedsimError

LARGEST_GUESS = 512  # examples: beyond, neighbouring batch sizes fit alike
TOLERANCE = 0.1  # root mean square distance of the counts from whole numbers
OPEN = 5  # units of each entry that are dealt one by one: real and whole shares differ by less


def whole_counts(proportions: Tensor, num_examples: int | None) -> Tensor:
    """Return the whole counts that the proportions stand for, estimating the batch size if need be."""
    return repair_counts(
        proportions, estimate_batch_size(proportions) if num_examples is None else num_examples
    )


def repair_counts(proportions: Tensor, total: int) -> Tensor:
    """Return the whole, non-negative counts that sum to `total` and lie nearest to total * proportions.

    Nearest in least squares: shift all by one number, cut at zero, so that the sum is right (projection
    on the simplex), then round down and give the remaining units to the largest fractions.
    """
    shifted = _shifted(proportions * total, total)
    whole = shifted.floor().long()
    missing = total - int(whole.sum())
    if not bool((shifted <= total + 1).all()) or not 0 <= missing <= len(whole):  # false for NaN, too
        raise _no_shares(proportions)
    if missing > 0:
        whole[(shifted - whole).topk(missing).indices] += 1
    return whole


def nearest_counts(proportions: Tensor, total: int) -> Tensor:
    """Return every count rounded by itself, whatever they sum to."""
    counts = (proportions * total).clamp(min=0).round()
    if not bool((counts < 2**53).all()):
        raise _no_shares(proportions)
    return counts.long()


def deal(levels: Tensor, units: int, following: Callable[[Tensor], Tensor]) -> Tensor:
    """Return how many units each entry gets when each goes to the lowest one, which then rises by one.

    levels: of the entries, about. following: their exact levels after so many units, and after those that
    come next: (n, OPEN). Of equal levels the first is served first.
    """
    sure = (_shifted(-levels, units).floor().long() - OPEN // 2).clamp(min=0)
    order = following(sure).flatten().sort(stable=True).indices
    return sure + (order[: units - int(sure.sum())] // OPEN).bincount(minlength=len(sure))


def estimate_batch_size(proportions: Tensor) -> int:
    """Return the smallest batch size that makes the counts nearly whole, and whole counts that sum to it.

    Proportions k_i / K determine K up to multiples, and only while their error is well below 1 / K.
    """
    sizes = torch.arange(1, LARGEST_GUESS + 1)
    counts = proportions.clamp(min=0) / proportions.clamp(min=0).sum() * sizes[:, None]
    whole = counts.round()
    fits = ((counts - whole).square().mean(dim=1).sqrt() < TOLERANCE) & (whole.sum(dim=1) == sizes)
    if not bool(fits.any()):
        raise FedsimError(
            f"no batch size up to {LARGEST_GUESS} fits the restored proportions. "
            "Remedy: add num_examples to federation.disclose, or name another attack."
        )
    return int(sizes[fits.nonzero()[0, 0]])


def _shifted(counts: Tensor, total: int) -> Tensor:
    """Shift all counts by one number and cut them at zero, so that they sum to `total`."""
    ordered = counts.sort(descending=True).values
    excess = (ordered.cumsum(0) - total) / torch.arange(1, len(counts) + 1)
    shift = excess[int((ordered > excess).sum()) - 1]
    return (counts - shift).clamp(min=0)


def _no_shares(proportions: Tensor) -> FedsimError:
    return FedsimError(
        f"expected proportions of classes, got numbers up to {float(proportions.abs().max()):.3g}: no batch "
        "has this gradient. Remedy: distrust this client, or weaker defenses."
    )
