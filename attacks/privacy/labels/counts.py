"""From real-valued class proportions to whole counts, with the batch size disclosed or not."""

import torch
from torch import Tensor

from fedsim.errors import FedsimError

LARGEST_GUESS = 512  # examples: beyond, neighbouring batch sizes fit alike
TOLERANCE = 0.1  # root mean square distance of the counts from whole numbers


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
    counts = proportions * total
    ordered = counts.sort(descending=True).values
    excess = (ordered.cumsum(0) - total) / torch.arange(1, len(counts) + 1)
    shift = excess[int((ordered > excess).sum()) - 1]
    shifted = (counts - shift).clamp(min=0)
    whole = shifted.floor().long()
    missing = total - int(whole.sum())
    if missing > 0:
        whole[(shifted - whole).topk(missing).indices] += 1
    return whole


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
