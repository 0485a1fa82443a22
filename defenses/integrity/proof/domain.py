"""Which batches are data at all: a gradient of anything else may be anything."""

import torch
from torch import Tensor
from torch.nn import functional

from fedsim.core.inputs import Number, Row, Tokens
from fedsim.core.training import Batch
from fedsim.core.types import Task

DOMAINS = ("uint8", "box", "real")  # from the strictest: whole grey levels, pixels in [0, 1], any numbers
TOKENS = "tokens"  # texts: pieces of the vocabulary, whatever else is asked for
REAL_LABELS = "real labels"  # images, with shares of classes that may be any numbers
NONE = "none"
ROUNDED = 2**-23  # how far a share of a range is from its value in float32
COPIES = 0.1  # of a batch: some data sets hold a few


def batch_problem(
    batch: Batch, size: int, task: Task, domain: str, dtype: torch.dtype = torch.float32
) -> str | None:
    """Say what keeps a batch from being so many inputs of the task with a class each, or None."""
    images, labels = batch.images, batch.labels
    if problem := images_problem(batch, size, task, dtype):
        return problem
    if isinstance(task.inputs, Tokens) and task.inputs.continued:
        return _continuation_problem(images, labels, task.inputs)
    if labels.dtype != torch.int64 or tuple(labels.shape) != (size,):
        return f"expected {size} labels of int64, got {tuple(labels.shape)} of {labels.dtype}"
    if int(labels.min()) < 0 or int(labels.max()) >= task.num_classes:
        return f"expected labels from 0 to {task.num_classes - 1}"
    if isinstance(task.inputs, Tokens):
        return None
    if domain != "real" and (bool(torch.signbit(images).any()) or float(images.max()) > 1):
        return "expected pixels in [0, 1]"  # -0.0 is another way to write a pixel, not another pixel
    if domain != "uint8":
        return None
    off = torch.round(images * 255) / 255 != images
    if isinstance(task.inputs, Row):
        off = off.flatten(1) & ~_own_values(images.flatten(1), task.inputs)
    return "expected pixels that are whole grey levels, multiples of 1/255" if bool(off.any()) else None


def _own_values(rows: Tensor, form: Row) -> Tensor:
    """Say which numbers of a table are values of their column: whole ones, where it has whole ones."""
    own = torch.zeros_like(rows, dtype=torch.bool)
    for column, (place, _) in zip(form.columns, form.places, strict=True):
        if isinstance(column, Number):
            exact = [not column.whole or _is_share(column, share) for share in rows[:, place].tolist()]
            own[:, place] = torch.tensor(exact)
    return own


def _is_share(column: Number, share: float) -> bool:
    return abs(column.share(column.value(share)) - share) <= ROUNDED


def copies_problem(batch: Batch, examples: int) -> str | None:
    """Say how many examples of a batch are copies of others, if that is more than data has, or None.

    examples: how many different places in the data it is drawn from; drawing one twice makes no copy.
    """
    copies = examples - len(set(examples_of(batch)))
    if copies > COPIES * examples:
        return f"{copies} of {examples} examples are copies of others in the batch"
    return None


def images_problem(batch: Batch, size: int, task: Task, dtype: torch.dtype) -> str | None:
    """Say what keeps the inputs from being so many of the task, finite and of a type, or None."""
    shape, expected = tuple(batch.images.shape), (size, *task.input_shape)
    what, dtype = ("tokens", torch.int64) if isinstance(task.inputs, Tokens) else ("images", dtype)
    if batch.images.dtype != dtype or shape != expected:
        kinds = [str(kind).removeprefix("torch.") for kind in (dtype, batch.images.dtype)]
        return f"expected {what} {expected} of {kinds[0]}, got {shape} of {kinds[1]}"
    if isinstance(task.inputs, Tokens):
        return _tokens_problem(batch.images, task.inputs)
    return None if bool(torch.isfinite(batch.images).all()) else "expected pixels that are finite"


def _tokens_problem(tokens: Tensor, form: Tokens) -> str | None:
    """Say what keeps tokens from being texts of a vocabulary, or None."""
    number = len(form.vocabulary)
    if int(tokens.min()) < 0 or int(tokens.max()) >= number:
        return f"expected tokens of the vocabulary, from 0 to {number - 1}"
    padded = tokens == form.padding
    if bool((padded[:, :-1] & ~padded[:, 1:]).any()):
        return "expected padding behind a text alone"
    return None


def _continuation_problem(tokens: Tensor, labels: Tensor, form: Tokens) -> str | None:
    """Say where labels are not the next tokens, or None: else any text could stand behind the end."""
    if labels.dtype != torch.int64 or labels.shape != tokens.shape:
        return f"expected a next token for every token, got {tuple(labels.shape)} of {labels.dtype}"
    text, follows = tokens != form.padding, functional.pad(tokens[:, 1:], (0, 1), value=form.padding)
    last = text & (follows == form.padding)
    fits = torch.where(last, (labels >= 0) & (labels < len(form.vocabulary)), labels == follows)
    if not bool(torch.where(text, fits, labels == -100).all()):
        return "expected labels that are the next tokens, and none (-100) behind a text"
    return None


def domain_of(batch: Batch, size: int, task: Task, dtype: torch.dtype = torch.float32) -> str:
    """Return the strictest domain that a batch lies in."""
    if isinstance(task.inputs, Tokens):
        return NONE if batch_problem(batch, size, task, TOKENS) else TOKENS
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
