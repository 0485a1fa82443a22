"""Which batches are data at all: a gradient of anything else may be anything."""

import torch
from torch import Tensor

from fedsim.core.inputs import Tokens
from fedsim.core.training import Batch
from fedsim.core.types import Task

DOMAINS = ("uint8", "box", "real")  # from the strictest: whole grey levels, pixels in [0, 1], any numbers
REAL_LABELS = "real labels"  # images, with shares of classes that may be any numbers
NONE = "none"
IGNORED = -100  # the label of a place that has no next token, as torch's cross-entropy has it
COPIES = 0.1  # of a batch: some data sets hold a few


def batch_problem(
    batch: Batch, size: int, task: Task, domain: str, dtype: torch.dtype = torch.float32
) -> str | None:
    """Say what keeps a batch from being so many inputs of the task with a class each, or None."""
    images, labels = batch.images, batch.labels
    if isinstance(task.inputs, Tokens):
        return _tokens_problem(batch, size, task, task.inputs)
    if problem := images_problem(batch, size, task, dtype):
        return problem
    if labels.dtype != torch.int64 or tuple(labels.shape) != (size,):
        return f"expected {size} labels of int64, got {tuple(labels.shape)} of {labels.dtype}"
    if int(labels.min()) < 0 or int(labels.max()) >= task.num_classes:
        return f"expected labels from 0 to {task.num_classes - 1}"
    if domain != "real" and (bool(torch.signbit(images).any()) or float(images.max()) > 1):
        return "expected pixels in [0, 1]"  # -0.0 is another way to write a pixel, not another pixel
    if domain == "uint8" and task.inputs is None and not torch.equal(torch.round(images * 255) / 255, images):
        return "expected pixels that are whole grey levels, multiples of 1/255"
    return None


def _tokens_problem(batch: Batch, size: int, task: Task, inputs: Tokens) -> str | None:
    """Say what keeps a batch from being so many texts with a class each, or next tokens, or None."""
    labels = (size, inputs.length) if inputs.continued else (size,)
    for name, values, shape, most in (
        ("tokens", batch.images, (size, inputs.length), task.num_tokens),
        ("labels", batch.labels, labels, task.num_classes),
    ):
        if values.dtype != torch.int64 or tuple(values.shape) != shape:
            return f"expected {name} {shape} of int64, got {tuple(values.shape)} of {values.dtype}"
        least = IGNORED if inputs.continued and name == "labels" else 0
        outside = (values < 0) & (values != least) | (values >= most)
        if bool(outside.any()):
            return f"expected {name} from 0 to {most - 1}"
    return None


def copies_problem(batch: Batch, examples: int) -> str | None:
    """Say how many examples of a batch are copies of others, if that is more than data has, or None.

    examples: how many different places in the data it is drawn from; drawing one twice makes no copy.
    """
    copies = examples - len(set(examples_of(batch)))
    if copies > COPIES * examples:
        return f"{copies} of {examples} examples are copies of others in the batch"
    return None


def images_problem(batch: Batch, size: int, task: Task, dtype: torch.dtype) -> str | None:
    """Say what keeps the images from being so many of the task, finite and of a type, or None."""
    shape, expected = tuple(batch.images.shape), (size, *task.input_shape)
    if batch.images.dtype != dtype or shape != expected:
        kinds = [str(kind).removeprefix("torch.") for kind in (dtype, batch.images.dtype)]
        return f"expected images {expected} of {kinds[0]}, got {shape} of {kinds[1]}"
    return None if bool(torch.isfinite(batch.images).all()) else "expected pixels that are finite"


def domain_of(batch: Batch, size: int, task: Task, dtype: torch.dtype = torch.float32) -> str:
    """Return the strictest domain that a batch lies in."""
    for domain in DOMAINS:
        if batch_problem(batch, size, task, domain, dtype) is None:
            return domain
    shares = batch.labels.is_floating_point() and tuple(batch.labels.shape) == (size, task.num_classes)
    return REAL_LABELS if shares and images_problem(batch, size, task, dtype) is None else NONE


def same_batch(one: Batch, other: Batch) -> bool:
    """Say whether two batches hold the same examples, in whatever order."""
    return sorted(examples_of(one)) == sorted(examples_of(other))


def examples_of(batch: Batch) -> list[bytes]:
    """Return the bytes of each example, image and label."""
    images = _plain(batch.images).flatten(1).numpy()
    labels = _plain(batch.labels).reshape(len(images), -1).numpy()
    return [image.tobytes() + label.tobytes() for image, label in zip(images, labels, strict=True)]


def _plain(values: Tensor) -> Tensor:
    return values.detach().cpu().double() + 0.0  # makes -0.0 the same as 0.0
