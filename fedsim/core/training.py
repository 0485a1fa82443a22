"""Local training: what a client is asked to do, how it is done honestly, and the trace that proves it."""

import functools
import hashlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from fedsim.core.types import Kind, Task, Weights

MODEL = "0."  # what the names of a model's tensors begin with in the state of a loop: it is handed over first


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """The images and labels of one step."""

    images: Tensor
    labels: Tensor
    paths: bytes = b""  # that show a verifier: these examples are of the data that was committed to


@dataclass(frozen=True, kw_only=True)
class Commitment:
    """What a prover tells of its data before it trains: it binds every example to its place."""

    root: str  # SHA-256 in hex
    examples: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Trace:
    """A training as it was done or is claimed to have been done: plain SGD, or a loop with settings."""

    checkpoints: Sequence[Weights]  # before steps 0, k, 2k, ..., and after the last; see gradient
    every: int  # k
    learning_rate: float  # of SGD on the mean cross-entropy; 0: the settings say it
    indices: Sequence[tuple[int, ...]]  # places of each step's examples in the prover's data
    digests: Sequence[str]  # of each step's batch
    gradient: bool = False  # of one step, whose gradient stands where the last checkpoint would
    settings: Sequence[str] = ()  # at each checkpoint, as text: what of a loop's state is no tensor

    def span(self, place: int) -> range:
        """Return the steps between a checkpoint and the next."""
        return range(place * self.every, min((place + 1) * self.every, len(self.digests)))

    def model_in(self, state: Weights) -> dict[str, Tensor]:
        """Return what is real of a checkpoint's model; a loop's counters and moments go far by themselves."""
        looped = len(self.settings) > 0
        return {
            name: tensor
            for name, tensor in state.items()
            if tensor.is_floating_point() and (not looped or name.startswith(MODEL))
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class LocalWork:
    """What a client is asked to do in a round."""

    round: int
    client: int
    model: nn.Module
    sent: Weights
    steps: int
    learning_rate: float
    every: int | None  # steps between the checkpoints of a trace; None: nobody wants one
    indices: Callable[[int], Tensor]  # of a step's examples, in the client's data
    batch: Callable[[Tensor], Batch]  # the examples at these indices
    task: Task
    owned: Tensor  # indices of the client's own examples
    generator: Generator  # for whoever needs chance
    kind: Kind = "update"  # of the reply; a gradient is that of the one step
    on_batch: Callable[[int, Batch], Batch] = lambda step, batch: batch  # the defenses' hooks of a step
    on_gradient: Callable[[int, Weights, Batch], Weights] = lambda step, gradient, used: gradient
    target: Weights | None = None  # where a cheat wants to end, such as stolen weights; None: its own idea

    def own_batches(self) -> list[Batch]:
        """Return the batches of all steps, in order."""
        return [self.batch(self.indices(step)) for step in range(self.steps)]

    def own_places(self) -> tuple[tuple[int, ...], ...]:
        """Return where they lie in the client's own data."""
        return tuple(self.places(self.indices(step)) for step in range(self.steps))

    def places(self, indices: Tensor) -> tuple[int, ...]:
        """Return where examples lie in the client's own data: what it commits to, in that order."""
        values, order = self._sorted
        return tuple(order[torch.searchsorted(values, indices)].tolist())

    @functools.cached_property
    def _sorted(self) -> tuple[Tensor, Tensor]:
        values, order = self.owned.sort()
        return values, order


@dataclass(frozen=True, kw_only=True, eq=False)
class Claim:
    """What a client says that it did: its reply, the trace behind it, and the batches it would show."""

    update: Weights  # new weights - sent; where a gradient is asked for, the gradient
    batches: tuple[Batch, ...]
    trace: Trace | None = None  # None: nobody wanted one
    machine: str | None = None  # what it says that it computed on; None: what it did
    loss: float | None = None  # mean over the steps; None: it tells none


def honest(work: LocalWork) -> Claim:
    """Do the work as asked: every step on its own batch, with the defenses inside the step."""
    model, every = work.model, work.every
    load_weights(model, work.sent)
    checkpoints = [] if every is None else [weights_of(model)]
    batches, losses = list[Batch](), list[float]()
    gradient: Weights = {}
    for step in range(work.steps):
        batches.append(work.batch(work.indices(step)))
        used = work.on_batch(step, batches[-1])
        plain, loss = step_gradient(model, used)
        gradient = work.on_gradient(step, plain, used)
        losses.append(loss)
        if work.kind == "update":
            apply_step(model, gradient, work.learning_rate)
        elif every is not None:
            checkpoints.append({name: tensor.cpu() for name, tensor in gradient.items()})
        if (
            every is not None
            and work.kind == "update"
            and ((step + 1) % every == 0 or step + 1 == work.steps)
        ):
            checkpoints.append(weights_of(model))
    if work.kind == "gradient":
        reply = {name: tensor.cpu() for name, tensor in gradient.items()}
    else:
        reply = {name: p.detach().cpu() - work.sent[name] for name, p in model.named_parameters()}
    trace = None if every is None else trace_of(work, checkpoints, batches)
    return Claim(update=reply, batches=tuple(batches), trace=trace, loss=sum(losses) / len(losses))


def trace_of(
    work: LocalWork,
    checkpoints: Sequence[Weights],
    batches: Sequence[Batch],
    places: Sequence[tuple[int, ...]] | None = None,
) -> Trace:
    """Return the trace that leads over these checkpoints, as work asks for them, by these batches.

    places: of the examples in the client's data; None: those that were asked for.
    """
    assert work.every is not None
    return Trace(
        checkpoints=tuple(checkpoints),
        every=work.every,
        learning_rate=work.learning_rate,
        indices=work.own_places() if places is None else tuple(places),
        digests=tuple(batch_digest(batch) for batch in batches),
        gradient=work.kind == "gradient",
    )


def arithmetic(precision: str) -> AbstractContextManager[Any]:
    """Return the context in which steps are computed: autocast for bfloat16 and float16."""
    if precision in ("float32", "float64"):
        return nullcontext()
    # No cache: it would keep the first step's casts of the weights for all steps.
    return torch.autocast("cpu", dtype=getattr(torch, precision), cache_enabled=False)


def sgd_step(model: nn.Module, batch: Batch, learning_rate: float) -> None:
    """Take one step in place."""
    apply_step(model, step_gradient(model, batch)[0], learning_rate)


def step_gradient(model: nn.Module, batch: Batch) -> tuple[Weights, float]:
    """Return a step's gradient and loss, in the same bits for who trains and for who does it again."""
    return batch_gradient(model, plainly_laid(batch.images), batch.labels)


def plainly_laid(images: Tensor) -> Tensor:
    """Return a copy with a new tensor's strides."""
    # Kernels, and so the last bits, are chosen by strides too, which a copy over the wire does not keep.
    return torch.empty(images.shape, dtype=images.dtype, device=images.device).copy_(images)


def apply_step(model: nn.Module, gradient: Weights, learning_rate: float) -> None:
    """Subtract a gradient from a model's parameters."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.sub_(gradient[name], alpha=learning_rate)


def batch_gradient(model: nn.Module, images: Tensor, labels: Tensor) -> tuple[Weights, float]:
    """Return the gradient of the mean cross-entropy over a batch, and the loss."""
    names, parameters = zip(*model.named_parameters(), strict=True)
    loss = functional.cross_entropy(model(images), labels)
    gradients = torch.autograd.grad(loss, parameters, materialize_grads=True)
    return dict(zip(names, gradients, strict=True)), float(loss.detach())


def exact_levels(images: Tensor) -> Tensor:
    """Return images in float64, with grey levels as exact multiples of 1/255: float32 rounds them."""
    if not images.is_floating_point():
        return images  # tokens are exact
    levels = torch.round(images * 255)
    return torch.where(levels / 255 == images, levels.double() / 255, images.double())


def load_weights(model: nn.Module, weights: Weights) -> None:
    """Copy weights into a model's parameters."""
    parameters = dict(model.named_parameters())
    with torch.no_grad():  # all in one call: small tensors cost more to call than to copy
        torch._foreach_copy_(list(parameters.values()), [weights[name] for name in parameters])


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Return a copy of a model's parameters."""
    return {name: parameter.detach().cpu().clone() for name, parameter in model.named_parameters()}


def batch_digest(batch: Batch) -> str:
    """Return the SHA-256 of a batch: type, shape and raw bytes of its images and of its labels."""
    return tensors_digest({"images": batch.images, "labels": batch.labels})


def tensors_digest(tensors: Weights) -> str:
    """Return the SHA-256 of named tensors, in their order."""
    digest = hashlib.sha256()
    for name, tensor in tensors.items():
        values = np.ascontiguousarray(tensor.detach().cpu().numpy())
        digest.update(f"{name} {values.dtype.str} {values.shape} ".encode())
        digest.update(values.data)  # no copy
    return digest.hexdigest()
