"""Putting other examples in the place of unwanted ones."""

import torch
from torch import Tensor
from torch.nn import functional

from fedsim.core.challenges import Challenge
from fedsim.core.errors import FedsimError
from fedsim.core.training import Batch
from fedsim.core.types import Weights


def targets(challenge: Challenge) -> Tensor:
    """Return the places to change: the unwanted examples, or if there are none the one of least loss."""
    if len(challenge.unwanted):
        return challenge.unwanted
    with torch.no_grad():
        logits = challenge.model(challenge.batch.images)
    return functional.cross_entropy(logits, challenge.batch.labels, reduction="none").argmin()[None]


def expect_examples(challenge: Challenge) -> int:
    """Return how many examples have to be replaced; complain if fewer others are at hand."""
    number = len(targets(challenge))
    if len(challenge.owned) < number:
        raise FedsimError(
            f"forgery: {number} examples to replace, {len(challenge.owned)} others at hand. "
            "Remedy: a smaller batch or fraction, or more data."
        )
    return number


def replaced(challenge: Challenge, others: Batch) -> Batch:
    """Return the batch with other examples in the place of the unwanted ones."""
    images, labels = challenge.batch.images.clone(), challenge.batch.labels.clone()
    places = targets(challenge)
    images[places] = others.images.to(images)
    labels[places] = others.labels
    return Batch(images=images, labels=labels)


def gap(one: Weights, other: Weights) -> float:
    """Return the squared distance of two gradients."""
    return sum(float((one[name] - other[name]).square().sum()) for name in one)


def flat_gradient(gradient: Weights) -> Tensor:
    """Return a gradient as one vector."""
    return torch.cat([tensor.flatten() for tensor in gradient.values()])
