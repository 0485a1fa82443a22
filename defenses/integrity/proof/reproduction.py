"""How honest recomputation may differ: by threads, order of a batch, micro-batches, kernels, precision.

Papers: Jia et al., Proof-of-Learning: Definitions and Practice (S&P 2021).
    Suliman et al., Towards a Re-evaluation of Data Forging Attacks in Practice (2024), section 4.1. Their
    machines are GPUs; threads and kernels stand in.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from fedsim.core.randomness import generator
from fedsim.core.training import Batch, apply_step, arithmetic, batch_gradient, step_gradient
from fedsim.core.types import Weights

SAFETY = 10.0  # delta, in units of the largest honest error
LEAST = 1e-9  # where nothing differed here, another machine may still
Gradient = Callable[[nn.Module, Batch], Weights]
Around = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True, kw_only=True)
class Variation:
    """Another way of computing the same steps."""

    name: str
    gradient: Gradient | None = None  # of a step; None: as it is computed honestly
    around: Around = nullcontext
    exact: bool = True  # float32: what a verifier must put up with

    def gradient_of(self, model: nn.Module, batch: Batch) -> Weights:
        """Return the gradient of a step."""
        return step_gradient(model, batch)[0] if self.gradient is None else self.gradient(model, batch)

    def step(self, model: nn.Module, batch: Batch, learning_rate: float) -> None:
        """Take one step in place."""
        apply_step(model, self.gradient_of(model, batch), learning_rate)


def variations(threads: int) -> list[Variation]:
    """Return how an honest verifier's machine may differ, and two precisions that do not pass."""
    more = threads + 1
    return [
        Variation(name="the same"),
        Variation(name=f"{more} threads", around=lambda: other_threads(more)),
        Variation(name="permuted batch", gradient=_permuted),
        Variation(name="micro-batches", gradient=_micro_batches),
        Variation(name="other kernels", around=plain_kernels),
        Variation(name="bfloat16", around=partial(arithmetic, "bfloat16"), exact=False),
        Variation(name="float16 checkpoints", exact=False),
    ]


def deterministic(threads: int) -> Variation:
    """Return what torch's own deterministic operations leave, on another number of threads (table I)."""

    @contextmanager
    def around() -> Iterator[None]:
        before = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(mode=True)
        try:
            with other_threads(threads + 1):
                yield
        finally:
            torch.use_deterministic_algorithms(mode=before)

    return Variation(name=f"{threads + 1} threads, deterministic operations", around=around, exact=False)


def stand_ins(threads: int) -> list[Variation]:
    """Return what on one machine differs as machines do: the order of sums, and the code that adds."""
    more = threads + 1

    def more_threads() -> AbstractContextManager[None]:
        return other_threads(more)

    return [
        Variation(name="default"),
        Variation(name=f"{more} threads", around=more_threads),
        Variation(name="plain kernels", around=plain_kernels),
        Variation(name=f"{more} threads and plain kernels", around=nested(more_threads, plain_kernels)),
    ]


def nested(outer: Around, inner: Around) -> Around:
    """Return one context within the other."""

    @contextmanager
    def around() -> Iterator[None]:
        with outer(), inner():
            yield

    return around


def _permuted(model: nn.Module, batch: Batch) -> Weights:
    order = torch.randperm(len(batch.labels), generator=generator(0, "permuted"))
    return step_gradient(model, Batch(images=batch.images[order], labels=batch.labels[order]))[0]


def _micro_batches(model: nn.Module, batch: Batch) -> Weights:
    """Add up gradients of quarters, as a machine of less memory would."""
    total: dict[str, torch.Tensor] = {}
    size = max(1, len(batch.labels) // 4)
    for images, labels in zip(torch.split(batch.images, size), torch.split(batch.labels, size), strict=True):
        gradient, _ = batch_gradient(model, images, labels)
        share = _counted(labels) / _counted(batch.labels)
        total = {name: total.get(name, 0) + share * tensor for name, tensor in gradient.items()}
    return total


def _counted(labels: torch.Tensor) -> int:
    """Return how many labels the mean loss is over: of next tokens, those that there are."""
    return int((labels != -100).sum()) if labels.dtype == torch.int64 else len(labels)


def rounded(number: int, *drawn: str) -> Variation:
    """Return a step on pixels that are off by a unit in their last place at most, by a number and texts.

    Where a ReLU or a pooling lies on the edge, rounding decides on which side: so it falls now on one, now
    on the other, as on machines that add in another order.
    """

    def gradient(model: nn.Module, batch: Batch) -> Weights:
        if not batch.images.is_floating_point():
            return step_gradient(model, batch)[0]  # tokens have no last place
        chance = generator(number, "rounded", *drawn)
        noise = torch.rand(batch.images.shape, generator=chance, dtype=torch.float64) * 2 - 1
        images = batch.images.double() * (1 + noise * torch.finfo(batch.images.dtype).eps)
        return step_gradient(model, Batch(images=images.to(batch.images), labels=batch.labels))[0]

    return Variation(name=f"rounded otherwise, {number}", gradient=gradient)


@contextmanager
def other_threads(number: int) -> Iterator[None]:
    """Compute with another number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def plain_kernels() -> Iterator[None]:
    """Compute without oneDNN."""
    with warnings.catch_warnings():  # on GPUs that are not here
        warnings.simplefilter("ignore")
        with torch.backends.mkldnn.flags(enabled=False):
            yield
