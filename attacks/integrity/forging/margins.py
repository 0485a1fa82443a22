"""How far the unread pixels of an image can be moved before a unit of the first convolution wakes up.

Units that are off, or that a pooling passed over, stay so while linear inequalities hold: a program in whole
numbers.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_matrix
from torch import Tensor, nn
from torch.nn import functional

Values = NDArray[np.float64]
SURE = 1e-4  # of a weight: moves count for a little more than they do, so that rounding wakes nobody
SECONDS = 2.0  # for the program of an image: what it has by then is a solution too


@dataclass(frozen=True, kw_only=True, eq=False)
class Margins:
    """The units of a first convolution on a batch: which pixels they read, and how far they may rise."""

    pixels: Tensor  # (places, weights of a unit): numbers of the pixels that a place reads; -1: the edge's
    weights: Tensor  # (channels, weights of a unit), in rise for a grey level
    room: Tensor  # (images, channels, places): how far a unit may rise
    passed: Tensor  # bool, (images, channels, places): a unit that is passed on must not move at all


def margins(model: nn.Module, images: Tensor) -> Margins | None:
    """Read the margins of a batch; None: the model does not begin with a convolution."""
    exact = images.double()
    calls = list[tuple[nn.Module, Tensor]]()
    leaves = [module for module in model.modules() if next(module.children(), None) is None]
    hooks = [leaf.register_forward_hook(lambda m, i, o: calls.append((m, o.detach()))) for leaf in leaves]
    try:
        with torch.no_grad():
            model(images)
    finally:
        for hook in hooks:
            hook.remove()
    first = next((n for n, (leaf, _) in enumerate(calls) if isinstance(leaf, nn.Conv2d)), None)
    if first is None or any(next(leaf.parameters(), None) is not None for leaf, _ in calls[:first]):
        return None
    convolution, units = calls[first]
    assert isinstance(convolution, nn.Conv2d)
    if convolution.groups != 1 or isinstance(convolution.padding, str):
        return None
    weights = convolution.weight.detach().double()
    following = calls[first + 1 :]
    if following and isinstance(norm := following[0][0], nn.BatchNorm2d):
        assert norm.running_var is not None
        slope = (norm.weight / (norm.running_var + norm.eps).sqrt()).detach().double()
        weights, units, following = weights * slope[:, None, None, None], following[0][1], following[1:]
    units = units.double()
    kept = [leaf for leaf, output in following[:2] if isinstance(leaf, nn.MaxPool2d)]
    heights, passed = _pooled(units, kept[0]) if kept else (torch.zeros_like(units), units > 0)
    before = calls[first - 1][1].double() if first else exact
    scale = _per_channel(before, exact) if first else torch.ones(images.shape[1], dtype=torch.float64)
    numbers = torch.arange(1, images[0].numel() + 1, dtype=torch.float64).view(1, *images.shape[1:])
    places = functional.unfold(
        numbers, convolution.kernel_size, convolution.dilation, convolution.padding, convolution.stride
    )
    return Margins(
        pixels=places[0].T.round().long() - 1,
        weights=(weights * scale[None, :, None, None] / 255).flatten(1),
        room=(heights - units).clamp(min=0).flatten(2),
        passed=passed.flatten(2),
    )


def _pooled(units: Tensor, pooling: nn.MaxPool2d) -> tuple[Tensor, Tensor]:
    """Return how high each unit may rise unnoticed by a pooling behind a ReLU, and which it passes on."""
    shown = units.clamp(min=0)
    pooled, where = functional.max_pool2d(shown, pooling.kernel_size, pooling.stride, return_indices=True)
    passed = torch.zeros_like(shown, dtype=torch.bool)
    passed.flatten(2).scatter_(2, where.flatten(2), True)
    passed &= units > 0
    if pooling.kernel_size != pooling.stride or pooling.padding != 0 or not isinstance(pooling.stride, int):
        return torch.zeros_like(units), units > 0  # windows that overlap: only what is off may move
    heights = pooled.repeat_interleave(pooling.stride, dim=2).repeat_interleave(pooling.stride, dim=3)
    missing = [units.shape[-1] - heights.shape[-1], units.shape[-2] - heights.shape[-2]]
    heights = functional.pad(heights, (0, missing[0], 0, missing[1]), value=torch.inf)  # in no window
    return heights, passed


def _per_channel(after: Tensor, before: Tensor) -> Tensor:
    """Return what a normalisation multiplies each channel by."""
    old, new = ((v.amax(dim=(0, 2, 3)) - v.amin(dim=(0, 2, 3))) for v in (before, after))
    return torch.where(old > 0, new / old, torch.ones_like(old))


def furthest(own: Margins, place: int, free: Tensor, low: Tensor, high: Tensor, gain: Tensor) -> Tensor:
    """Return whole moves of an image's pixels, of the largest total gain, that wake no unit.

    low, high: how far each may move down or up; one of the two is 0.
    """
    read = own.pixels.clamp(min=0)
    fixed = torch.zeros(len(free), dtype=torch.bool)
    fixed[own.pixels[own.passed[place].any(dim=0)].clamp(min=0)] = True
    movable = free & ~fixed & ((low < 0) | (high > 0))
    moves = torch.zeros(len(free), dtype=torch.float64)
    chosen = movable.nonzero().flatten()
    if not len(chosen):
        return moves
    column = torch.full((len(free),), -1, dtype=torch.int64)
    column[chosen] = torch.arange(len(chosen))
    columns = torch.where(own.pixels >= 0, column[read], -1)  # (places, weights of a unit)
    places = (columns >= 0).any(dim=1).nonzero().flatten()
    rows, limits = list[Values](), list[Values]()
    for at in places.tolist():
        used = columns[at] >= 0
        weights = own.weights[:, used]
        upwards = torch.where(high[own.pixels[at][used]] > 0, 1.0, -1.0).double()
        weights = weights + SURE * weights.abs() * upwards
        row = torch.zeros(len(weights), len(chosen), dtype=torch.float64)
        row[:, columns[at][used]] = weights
        worst = torch.maximum(row * low[chosen], row * high[chosen]).sum(dim=1)
        tight = worst > own.room[place, :, at]
        rows.append(row[tight].numpy())
        limits.append(own.room[place, tight, at].numpy())
    table = np.concatenate(rows)
    constraints = [LinearConstraint(csr_matrix(table), -np.inf, np.concatenate(limits))] if len(table) else []
    found = milp(
        -gain[chosen].numpy(),
        integrality=np.ones(len(chosen)),
        bounds=Bounds(low[chosen].numpy(), high[chosen].numpy()),
        constraints=constraints,
        options={"time_limit": SECONDS, "mip_rel_gap": 0.05},
    )
    if found.x is not None:
        moves[chosen] = torch.from_numpy(np.round(found.x))
    return moves
