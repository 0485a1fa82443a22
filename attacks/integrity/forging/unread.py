"""What a model's gradient takes from each image of a batch, bit by bit, and which pixels it does not read.

A layer's gradient is a sum of errors at its outputs times inputs. An input that meets no error but 0 is not
in the sum: behind a ReLU that is off, or a pooling that chose another place.
"""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.grad import conv2d_input

from fedsim.core.errors import FedsimError
from fedsim.core.training import Batch, plainly_laid, sgd_step, step_gradient, weights_of
from fedsim.core.types import Weights

SAME = 1e-12  # of an image's gradient, in float64: the same terms in another order


@dataclass(frozen=True, kw_only=True, eq=False)
class Reading:
    """What the gradient of a batch is made of, a row for each image."""

    free: Tensor  # bool, in the images' shape: pixels that meet no error in the first layer
    first: Tensor | None  # what a first convolution's gradient takes from each image, in float64
    parts: tuple[
        Tensor, ...
    ]  # of other layers the errors, and the inputs that meet one; 0 in place of others

    def same_as(self, other: "Reading") -> Tensor:
        """Say of each image whether all parts are the same, bit by bit; of the first layer, the sum."""
        pairs = zip(self.parts, other.parts, strict=True)
        same = torch.stack([(mine == theirs).flatten(1).all(dim=1) for mine, theirs in pairs]).all(dim=0)
        if self.first is None or other.first is None:
            return same
        size = self.first.abs().amax(dim=1).clamp(min=1e-300)
        return same & ((self.first - other.first).abs().amax(dim=1) <= SAME * size)


def reading(model: nn.Module, batch: Batch) -> Reading:
    """Read a batch once, forward and backward."""
    layers = [
        module for module in model.modules() if next(module.parameters(recurse=False), None) is not None
    ]
    calls = list[tuple[nn.Module, Tensor, Tensor]]()

    def keep(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        calls.append((module, inputs[0].detach(), output))

    hooks = [layer.register_forward_hook(keep) for layer in layers]
    try:
        logits = model(plainly_laid(batch.images))
    finally:
        for hook in hooks:
            hook.remove()
    loss = functional.cross_entropy(logits, batch.labels)
    errors = torch.autograd.grad(loss, [output for *_, output in calls], materialize_grads=True)
    first = calls[0][1]
    if first.numel() != batch.images.numel():
        raise FedsimError(
            "forgery=[invisible]: expected a model whose first layer reads pixels one by one, got one that "
            f"makes {tuple(first.shape)} of {tuple(batch.images.shape)}. Remedy: another model or forgery."
        )
    parts, free, taken = list[Tensor](), torch.zeros(0), None
    for number, ((module, inputs, _), error) in enumerate(zip(calls, errors, strict=True)):
        read = read_inputs(module, inputs, error)
        if number == 0:
            free = ~read.reshape(batch.images.shape)
            if (taken := _taken(module, inputs, error)) is not None:
                continue  # another unit may stand for the one that was read, if it sees the same
        parts += [error, torch.where(read, inputs, torch.zeros_like(inputs))]
    return Reading(free=free, first=taken, parts=tuple(parts))


def _taken(module: nn.Module, inputs: Tensor, errors: Tensor) -> Tensor | None:
    """Return the gradient of a convolution's weights for each image; None: not an ordinary convolution."""
    if not isinstance(module, nn.Conv2d) or module.groups != 1 or isinstance(module.padding, str):
        return None
    seen = functional.unfold(
        inputs.double(), module.kernel_size, module.dilation, module.padding, module.stride
    )
    seen = functional.pad(seen, (0, 0, 0, 1), value=1.0)  # a bias sees 1
    return (errors.double().flatten(2) @ seen.transpose(1, 2)).flatten(1)


def read_inputs(module: nn.Module, inputs: Tensor, errors: Tensor) -> Tensor:
    """Return which inputs of a layer meet an error that is not 0; of an unknown layer all of an image."""
    met = errors != 0
    if isinstance(module, nn.Conv2d) and module.groups == 1 and not isinstance(module.padding, str):
        kernel = torch.ones_like(module.weight[:1])
        places = met.any(dim=1, keepdim=True).to(kernel.dtype)
        spread: Tensor = conv2d_input(  # type: ignore[no-untyped-call]
            inputs.shape, kernel, places, module.stride, module.padding, module.dilation
        )
        return spread > 0.5
    if isinstance(module, nn.BatchNorm2d) and not module.training:
        return met
    if isinstance(module, nn.Linear):
        return met.any(dim=-1, keepdim=True).expand_as(inputs)
    if isinstance(module, nn.Embedding):
        return met.any(dim=-1)
    return met.flatten(1).any(dim=1).view(-1, *[1] * (inputs.ndim - 1)).expand_as(inputs)


def same_step(model: nn.Module, batch: Batch, images: Tensor, rate: float | None) -> bool:
    """Say whether other images lead to the same weights, bit for bit; rate None: to the same gradient."""
    if rate is None:
        return same_gradient(model, batch, images)
    ends = list[Weights]()
    for own in (batch, Batch(images=images, labels=batch.labels)):
        stepped = copy.deepcopy(model)
        sgd_step(stepped, own, rate)
        ends.append(weights_of(stepped))
    return all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def same_gradient(model: nn.Module, batch: Batch, images: Tensor) -> bool:
    """Say whether other images in a batch give its gradient, bit for bit."""
    wanted, _ = step_gradient(model, batch)
    found, _ = step_gradient(model, Batch(images=images, labels=batch.labels))
    return all(torch.equal(wanted[name], found[name]) for name in wanted)
