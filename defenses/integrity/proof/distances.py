"""How far two sets of weights are from each other."""

from collections.abc import Callable

import torch
from torch import Tensor

from fedsim.core.types import Weights

DISTANCES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "l1": lambda one, other: (one - other).abs().sum(),
    "l2": lambda one, other: (one - other).norm(),
    "linf": lambda one, other: (one - other).abs().max(),
    "cosine": lambda one, other: 1 - torch.nn.functional.cosine_similarity(one, other, dim=0),
}

LIMITED = ("l1", "l2", "linf")  # that may be a verdict's limit: the cosine does not see scale


def distance(kind: str, one: Weights, other: Weights) -> float:
    """Return a distance over all weights together, in float64."""
    return float(DISTANCES[kind](_flat(one), _flat({name: other[name] for name in one})))


def _flat(weights: Weights) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in weights.values()]).double()
