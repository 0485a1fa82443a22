"""Convolutions that carry pixels to the first linear layer, and the images that can be made of what arrives.

Every channel shows one colour, moved by some pixels: a kernel that is zero but for one 1. The first bias
lifts pixels to 0 and more, so that ReLUs pass them on. A stride keeps one pixel of each square, and other
channels keep the others, while there are channels; max-pooling keeps the largest of a square, and of
overlapping squares the least one bounds a pixel (a morphological closing). Fewer features than pixels:
the image at that resolution.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from fedsim.attacks.privacy.matching.module_calls import Call, module_calls
from fedsim.core.errors import FedsimError
from fedsim.core.types import Task

PASSING = (nn.ReLU, nn.Identity, nn.Flatten, nn.Dropout)


@dataclass(frozen=True, kw_only=True)
class View:
    """A channel: at (u, v) the largest pixel of a colour in a square of `window` at row + stride u, ..."""

    colour: int
    row: int
    column: int
    stride: int
    window: int
    height: int
    width: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Carriage:
    """Tensors to send in the layers before the first linear one, and what its inputs are then."""

    tensors: dict[str, Tensor]
    views: tuple[View, ...]
    shape: tuple[int, ...]  # of an image

    @property
    def exact(self) -> bool:
        """Whether every pixel arrives as it is."""
        seen = torch.zeros(self.shape, dtype=torch.bool)
        for view in self.views:
            if view.window == 1:
                seen[view.colour, view.row :: view.stride, view.column :: view.stride] = True
        return bool(seen.all())

    @property
    def summary(self) -> str:
        """Say what arrives of an image."""
        features = sum(view.height * view.width for view in self.views)
        window = max((view.window for view in self.views), default=1)
        return f"{features} features for {torch.Size(self.shape).numel()} pixels, each of {window} x {window}"

    def images(self, features: Tensor, task: Task) -> Tensor:
        """Return images in [0, 1] of what arrived (N, in): the least of what bounds each pixel."""
        mean, std = (torch.tensor(v, dtype=features.dtype).view(-1, 1, 1) for v in (task.mean, task.std))
        channels, height, width = self.shape
        bounds = torch.full((len(features), *self.shape), torch.inf, dtype=features.dtype)
        parts = torch.split(features, [view.height * view.width for view in self.views], dim=1)
        for view, part in zip(self.views, parts, strict=True):
            values = part.view(-1, view.height, view.width)
            for down, right in itertools.product(range(view.window), repeat=2):
                rows = view.row + down + view.stride * torch.arange(view.height)
                columns = view.column + right + view.stride * torch.arange(view.width)
                inside = (rows >= 0) & (rows < height), (columns >= 0) & (columns < width)
                place = rows[inside[0]][:, None], columns[inside[1]][None]
                seen = bounds[:, view.colour]
                seen[:, *place] = torch.minimum(seen[:, *place], values[:, inside[0]][:, :, inside[1]])
        pixels = bounds * std.expand(channels, 1, 1)  # carried pixels begin at 0, which is black
        return torch.where(pixels.isfinite(), pixels, mean.expand_as(pixels[0])).clamp(0, 1).float()


def carriage_of(model: nn.Module, task: Task, layer: str) -> Carriage:
    """Return what carries pixels to a linear layer; layers that cannot are named."""
    _, _, calls = module_calls(model, task)
    before = list(itertools.takewhile(lambda call: call.name != layer, calls))
    before = before[next(i for i, c in enumerate(before) if isinstance(c.module, nn.Conv2d)) :]
    lift = torch.tensor(task.mean).expand(task.input_shape[0]) / torch.tensor(task.std)
    size = task.input_shape[1:]
    views = [
        View(colour=c, row=0, column=0, stride=1, window=1, height=size[0], width=size[1])
        for c in range(task.input_shape[0])
    ]
    tensors, entering, first = dict[str, Tensor](), before[0].entering, True
    for place, call in enumerate(before):
        module = call.module
        if not torch.equal(call.entering, entering):
            raise _refusal(call.name, "more than one path leads to it")
        entering = call.leaving
        if isinstance(module, nn.Conv2d):
            shrinks = _shrinks(before[place:])
            views, own = _convolved(module, views, shrinks, lift if first else None)
            tensors |= {f"{call.name}.{name}": tensor for name, tensor in own.items()}
            first = False
        elif isinstance(module, nn.BatchNorm2d) and module.running_var is not None:
            assert module.running_mean is not None
            size_of = (module.running_var + module.eps).sqrt()
            tensors |= {f"{call.name}.weight": size_of, f"{call.name}.bias": module.running_mean.clone()}
        elif isinstance(module, nn.MaxPool2d):
            views = [_pooled(view, _side(module.kernel_size), _side(module.stride)) for view in views]
        elif not isinstance(module, PASSING):
            raise _refusal(call.name, f"{type(module).__name__} does not pass pixels on")
        if call.leaving.ndim == 4:
            height, width = call.leaving.shape[2:]
            views = [replace(view, height=height, width=width) for view in views]
    silent = before[-1].leaving.shape[1:].numel() - sum(view.height * view.width for view in views)
    if silent:  # channels that show nothing
        views += [View(colour=0, row=-(10**6), column=0, stride=1, window=1, height=1, width=silent)]
    return Carriage(tensors=tensors, views=tuple(views), shape=task.input_shape)


def _shrinks(calls: Sequence[Call]) -> int:
    """Return by how much a convolution and the pooling behind it shrink an image."""
    by = _side(calls[0].module.stride)
    for call in calls[1:]:
        if isinstance(call.module, nn.Conv2d):
            break
        if isinstance(call.module, nn.MaxPool2d):
            by *= _side(call.module.stride)
    return by


def _convolved(
    module: nn.Conv2d, views: list[View], shrinks: int, lift: Tensor | None
) -> tuple[list[View], dict[str, Tensor]]:
    """Return the views behind a convolution, and its tensors: as many moves of each view as there is room."""
    kernel, padding, stride = (_side(s) for s in (module.kernel_size, module.padding, module.stride))
    weight, bias = torch.zeros_like(module.weight), None
    if module.bias is not None:
        bias = torch.zeros_like(module.bias)
    elif lift is not None:
        raise _refusal("the first convolution", "it has no bias to lift pixels above 0")
    begin = max(0, min(padding, kernel - shrinks)) if padding else max(0, (kernel - shrinks) // 2)
    moves = list(itertools.product(range(begin, min(kernel, begin + shrinks)), repeat=2))
    moves.sort(key=lambda move: (sum(move) % 2, move))  # opposite corners first: they tell most
    shown = list[View]()
    for (down, right), (channel, view) in itertools.product(moves, enumerate(views)):
        if len(shown) == len(weight):
            break
        weight[len(shown), channel, down, right] = 1
        if lift is not None and bias is not None:
            bias[len(shown)] = lift[view.colour]
        shown.append(
            replace(
                view,
                row=view.row + view.stride * (down - padding),
                column=view.column + view.stride * (right - padding),
                stride=view.stride * stride,
            )
        )
    return shown, {"weight": weight} | ({} if bias is None else {"bias": bias})


def _side(size: Any) -> int:
    """Return a square's side."""
    return int(size[0] if isinstance(size, tuple) else size)


def _pooled(view: View, kernel: int, stride: int) -> View:
    return replace(view, window=view.window + view.stride * (kernel - 1), stride=view.stride * stride)


def _refusal(layer: str, why: str) -> FedsimError:
    return FedsimError(
        f"pixels cannot be carried through {layer!r}: {why}. Remedy: model=lenet5, vggmini or mlp."
    )
