"""Kernels that differ where a test says so, by a known amount: which ones a CPU has decides no test.

The model has one weight. Its gradient is what a function of the batch and of the state of torch says: the
number of threads, say. All else is exact, so that an error is either the function's or none.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

Kernel = Callable[[Tensor], float]


def order(images: Tensor) -> float:
    """Tell an order from another, but no batch from the mean of its quarters (of an even size)."""
    light = images.double().flatten(1).sum(1)
    return float(light[::2].sum() - light[1::2].sum()) / len(images)


def size(images: Tensor) -> float:
    """Tell how many images come at a time."""
    return float(len(images))


def threads(images: Tensor) -> float:
    """Tell on how many threads this is computed."""
    return float(torch.get_num_threads())


def library(images: Tensor) -> float:
    """Tell oneDNN's kernels from plain ones."""
    return float(torch.backends.mkldnn.enabled)


def rounding(images: Tensor) -> float:
    """Depend on the order as a sum in the precision of the moment may."""
    low = torch.is_autocast_enabled("cpu")
    return order(images) * torch.finfo(torch.get_autocast_dtype("cpu") if low else torch.float32).eps


SEEN_BY = {  # the one variation of honest recomputation that each kernel makes a difference to
    order: "permuted batch",
    size: "micro-batches",
    threads: "2 threads",
    library: "other kernels",
}


class _Told(torch.autograd.Function):
    @staticmethod
    def forward(ctx, images: Tensor, weight: Tensor, slope: float) -> Tensor:
        ctx.slope = slope
        return images.clone()

    @staticmethod
    def backward(ctx, slopes: Tensor) -> tuple[None, Tensor, None]:
        return None, slopes.new_full((1,), ctx.slope), None


class Simulated(nn.Module):
    """Takes images of any size, and knows four classes."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.kernel, self.weight = kernel, nn.Parameter(torch.zeros(1))

    def forward(self, images: Tensor) -> Tensor:
        images = _Told.apply(images, self.weight, self.kernel(images))
        return nn.functional.adaptive_avg_pool2d(images, (1, 4)).flatten(1)
