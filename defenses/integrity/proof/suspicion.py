"""Statistics that may tell a forged batch from data, for a verifier who has some data of the same kind.

None is proof: each has honest batches that look strange, which ROC curves show.
"""

import torch

from fedsim.core.training import Batch

NEIGHBOURS = 5


def suspicions(batch: Batch, reference: Batch) -> dict[str, float]:
    """Return all statistics of a batch; more is stranger."""
    return {
        "dark pixels lit": lit_dark_pixels(batch, reference),
        "near duplicates": near_duplicates(batch),
        "label against neighbours": disagreement(batch, reference),
    }


def lit_dark_pixels(batch: Batch, reference: Batch) -> float:
    """Return the mean light in pixels that are dark in all reference images, and its lack in bright ones."""
    if not batch.images.is_floating_point():
        return 0.0  # tokens are neither dark nor bright
    images, others = batch.images.double(), reference.images.double()
    dark, bright = others.amax(dim=0) == 0, others.amin(dim=0) == 1
    return float((images.abs() * dark).sum() + ((1 - images).abs() * bright).sum()) / images.numel()


def near_duplicates(batch: Batch) -> float:
    """Return how near the two most alike images are: minus the logarithm of their distance."""
    flat = batch.images.double().flatten(1)
    if len(flat) < 2:
        return 0.0
    return -float(torch.log10(torch.nn.functional.pdist(flat).min() + 1e-6))


def disagreement(batch: Batch, reference: Batch) -> float:
    """Return the share of examples whose class is not the commonest of their nearest reference images."""
    if batch.labels.dtype != torch.int64:
        return 1.0  # not classes at all
    if batch.labels.ndim > 1:
        return 0.0  # next tokens: a text tells them itself
    distances = torch.cdist(batch.images.float().flatten(1), reference.images.float().flatten(1))
    nearest = reference.labels[distances.topk(min(NEIGHBOURS, len(reference.labels)), largest=False).indices]
    return float((nearest.mode(dim=1).values != batch.labels).float().mean())
