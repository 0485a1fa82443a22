"""Which batches are data at all: a gradient of anything else may be anything."""

import torch

from fedsim.training import Batch
from fedsim.types import Task

DOMAINS = ("uint8", "box", "real")  # from the strictest: whole grey levels, pixels in [0, 1], any numbers
LABELS = "real labels"  # any pixels, and shares of classes that may be any numbers


def batch_problem(batch: Batch, size: int, task: Task, domain: str) -> str | None:
    """Say what keeps a batch from being so many images of the task with a class each, or None."""
    images, labels = batch.images, batch.labels
    if images.dtype not in (torch.float32, torch.float64) or tuple(images.shape) != (size, *task.input_shape):
        shape = tuple(images.shape)
        return f"expected images {(size, *task.input_shape)} of float32, got {shape} of {images.dtype}"
    if labels.dtype != torch.int64 or tuple(labels.shape) != (size,):
        return f"expected {size} labels of int64, got {tuple(labels.shape)} of {labels.dtype}"
    if int(labels.min()) < 0 or int(labels.max()) >= task.num_classes:
        return f"expected labels from 0 to {task.num_classes - 1}"
    if not bool(torch.isfinite(images).all()):
        return "expected pixels that are finite"
    if domain != "real" and not (float(images.min()) >= 0 and float(images.max()) <= 1):
        return "expected pixels in [0, 1]"
    if domain == "uint8" and not torch.equal(torch.round(images * 255) / 255, images):
        return "expected pixels that are whole grey levels, multiples of 1/255"
    return None


def domain_of(batch: Batch, size: int, task: Task) -> str:
    """Return the strictest domain that a batch lies in."""
    for domain in DOMAINS:
        if batch_problem(batch, size, task, domain) is None:
            return domain
    return LABELS


def same_batch(one: Batch, other: Batch) -> bool:
    """Say whether two batches hold the same examples, in whatever order."""
    return examples_of(one) == examples_of(other)


def examples_of(batch: Batch) -> list[bytes]:
    """Return the bytes of each example, image and label, sorted."""
    images = batch.images.detach().cpu().double().flatten(1).numpy()
    labels = batch.labels.detach().cpu().double().reshape(len(images), -1).numpy()
    return sorted(image.tobytes() + label.tobytes() for image, label in zip(images, labels, strict=True))
