"""What an exact attack says: images with their labels, or features, each with its certificate."""

import torch
from torch import Tensor

from fedsim.attacks.privacy.matching.linear_layers import LinearLayer
from fedsim.core.types import Reconstruction, Task


def reconstruction(
    task: Task,
    first: LinearLayer,
    inputs: Tensor,
    *,
    labels: tuple[Tensor, Tensor] | None,
    certified: Tensor,
    size: int,
) -> Reconstruction:
    """Show inputs [x | 1] of a model's first linear layer.

    labels: with how often each example is there; None: not known.
    Classes are counted only when all `size` examples are accounted for.
    """
    found, copies = (None, torch.ones(len(inputs), dtype=torch.int64)) if labels is None else labels
    rows, sure = (tensor.repeat_interleave(copies, dim=0) for tensor in (inputs[:, :-1], certified))
    counts = None
    if found is not None:
        found = found.repeat_interleave(copies)
        counts = found.bincount(minlength=task.num_classes) if len(rows) == size else None
    presence = None if counts is None else counts > 0
    if first.task_shape is None:
        return Reconstruction(
            embeddings=rows.float(),
            embedding_layer=first.name,
            class_counts=counts,
            class_presence=presence,
            certified=sure,
        )
    mean, std = (torch.tensor(v, dtype=torch.float64).view(1, -1, 1, 1) for v in (task.mean, task.std))
    images = (rows.view(-1, *task.input_shape) * std + mean).clamp(0, 1).float()
    return Reconstruction(
        images=images, labels=found, class_counts=counts, class_presence=presence, certified=sure
    )
