"""How near claimed images come to those that must not appear: in pixels, in structure, to a model's eye."""

import math

import torch
from torch import Tensor, nn

from fedsim.core.errors import FedsimError
from fedsim.core.training import Batch
from fedsim.core.types import Weights
from fedsim.metrics.ssim import structural_similarity
from fedsim.models.last_linear import last_features

RULES = ("off", "l2", "ssim", "embedding")
Near = dict[str, float | None]
NOTHING_NEAR: Near = dict.fromkeys(RULES[1:])
CLOSEST = 3  # claimed images, by their pixels, whose structure is compared


def nearness(model: nn.Module, weights: Weights, used: Batch, unwanted: Tensor, claimed: Tensor) -> Near:
    """Return by each rule how far the nearest claimed image is from an unwanted one: 0 for a copy.

    l2: root mean square, in grey levels. ssim: 1 - SSIM. embedding: of what enters the last layer, relative
    to the distances within the batch. None where a rule does not apply.
    """
    places = unwanted if len(unwanted) else torch.arange(len(used.labels))
    theirs, mine = used.images[places].double(), claimed.double()
    gaps = _gaps(theirs.flatten(1), mine.flatten(1)) / math.sqrt(mine[0].numel())
    found, pixels = dict(NOTHING_NEAR), used.images.is_floating_point()  # tokens have no grey levels
    if pixels:
        found["l2"] = 255 * float(gaps.min())
    if pixels and min(used.images.shape[2:]) >= 6:
        close = gaps.topk(min(CLOSEST, len(mine)), largest=False).indices
        alike = [
            structural_similarity(mine[close[:, rank]].clamp(0, 1), theirs) for rank in range(close.shape[1])
        ]
        found["ssim"] = 1 - float(torch.stack(alike).max())
    try:
        images = torch.cat([used.images[places], claimed.to(used.images.dtype), used.images])
        features, _ = last_features(model, tuple(used.images.shape[1:]), weights, images)
        theirs, mine, all_used = torch.split(
            features.double().flatten(1), [len(places), len(claimed), len(used.labels)]
        )
        scale = float(torch.nn.functional.pdist(all_used).median()) if len(all_used) > 1 else 1.0
        found["embedding"] = float(_gaps(theirs, mine).min()) / max(scale, 1e-300)
    except FedsimError:  # a model without a last linear layer has no such embedding
        pass
    return found


def _gaps(one: Tensor, other: Tensor) -> Tensor:
    """Return all distances between rows, by differences: products of rows would round copies apart."""
    return torch.cdist(one, other, compute_mode="donot_use_mm_for_euclid_dist")
