"""Label metrics as functions of class counts, and the guess that saw nothing."""

import torch
from torch import Tensor

from fedsim.core.types import Truth


def true_counts(truth: Truth, num_classes: int) -> Tensor:
    """Return how many examples of each class the private batch holds."""
    return truth.labels.bincount(minlength=num_classes)


def baseline_counts(num_examples: int, num_classes: int) -> Tensor:
    """Return the all-average guess: every class round(K / C) times, knowing sizes and nothing else."""
    return torch.full((num_classes,), int(num_examples / num_classes + 0.5))


def presence_accuracy(guessed: Tensor, true: Tensor) -> float:
    """Return the share of all classes whose presence is right."""
    return float(((guessed > 0) == (true > 0)).double().mean())


def count_accuracy(guessed: Tensor, true: Tensor) -> float:
    """Return the share of all classes whose count is exactly right; absent classes count too."""
    return float((guessed == true).double().mean())


def instance_recall(guessed: Tensor, true: Tensor) -> float:
    """Return the share of the batch's examples whose label was restored."""
    return float(torch.minimum(guessed, true).clamp(min=0).sum() / true.sum())
