"""What an exact attack says: images with their labels, or features, each with its certificate."""

import torch
from torch import Tensor

from fedsim.attacks.privacy.exact.behind import softmax_error
from fedsim.attacks.privacy.exact.counting import at_least
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
    bounds: Tensor | None = None,
) -> Reconstruction:
    """Show inputs [x | 1] of a model's first linear layer.

    labels: with how often each example is there; None: not known.
    bounds: the fewest and the most of each class, by what the found ones leave of the last layer.
    Classes are counted only when all `size` examples are accounted for.
    """
    found, copies = (None, torch.ones(len(inputs), dtype=torch.int64)) if labels is None else labels
    rows, sure = (tensor.repeat_interleave(copies, dim=0) for tensor in (inputs[:, :-1], certified))
    counts = None
    if found is not None:
        found = found.repeat_interleave(copies)
        counts = found.bincount(minlength=task.num_classes) if len(rows) == size else None
    if counts is None and bounds is not None and torch.equal(bounds[0], bounds[1]):
        counts = bounds[0]
    presence = None if counts is None else counts > 0
    if first.task_shape is None:
        return Reconstruction(
            embeddings=rows.float(),
            embedding_layer=first.name,
            labels=found,
            class_counts=counts,
            class_presence=presence,
            count_bounds=bounds,
            certified=sure,
        )
    mean, std = (torch.tensor(v, dtype=torch.float64).view(1, -1, 1, 1) for v in (task.mean, task.std))
    images = (rows.view(-1, *task.input_shape) * std + mean).clamp(0, 1).float()
    return Reconstruction(
        images=images,
        labels=found,
        class_counts=counts,
        class_presence=presence,
        count_bounds=bounds,
        certified=sure,
    )


def bounds_beside(
    last: LinearLayer, scale: float, logits: Tensor, labels: tuple[Tensor, Tensor], size: int, noise: float
) -> Tensor:
    """Return the fewest and the most of each class (2, C): those certified, and what their errors leave.

    scale: of the received gradient; labels: of these logits, with how often each is there;
    noise: deviation of an entry of what was received.
    """
    found, copies = labels
    seen = torch.zeros(logits.shape[1], dtype=torch.int64).index_add(0, found, copies)
    missing = max(0, size - int(copies.sum()))
    known = (copies[:, None] * softmax_error(logits, found)).sum(dim=0)
    fewest = seen + at_least(size * scale * last.bias_gradient - known, missing, size * abs(scale) * noise)
    return torch.stack([fewest, fewest + max(0, size - int(fewest.sum()))])
