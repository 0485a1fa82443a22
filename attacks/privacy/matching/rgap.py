"""One image, layer by layer, by linear algebra alone: the recursive attack.

What leaks: the image of a batch of one, and its label; exact where the layers have enough equations.
Paper: Zhu and Blaschko, R-GAP: Recursive Gradient Attack on Privacy (ICLR 2021). Here each layer's equations
    are weighted by what the activation's slope leaves of them, and inactive units, pixel range and smoothness
    help where equations are too few.
Assumes: one example; a plain chain of convolutions or linear layers and activations that can be undone
    (sigmoid, tanh, leaky ReLU; of ReLU the active units); biases in the last layer.
Fails: with poolings, BatchNorm, residual connections, GELU and SiLU, and on defended gradients. Where
    equations are too few, the residual is small although the image is only the smoothest of many.

The last layer's gradient is (p - y) e^T, so its input e and everything behind it is known. From the back:
the activation is undone, z = W a + b are equations for the input a of the layer; the gradient of W, with the
error at z already known, is linear in a too. Both together are solved by least squares, and so on down to the
pixels.
"""

import dataclasses
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsim.attacks.privacy.claims import checked, gradient_factor
from fedsim.attacks.privacy.matching.module_calls import module_calls
from fedsim.attacks.privacy.matching.normalisation import enters_as_image
from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Attack
from fedsim.core.settings import number
from fedsim.core.types import Observation, Reconstruction, Task
from fedsim.models.layers import Normalize

SOLVES = 10  # with constraints, where equations are too few
TRANSPARENT = (Normalize, nn.Flatten, nn.Identity, nn.Dropout)  # of evaluation mode


class RGAP(Attack):
    """Recursive attack on a batch of one: undo the activation, solve for the layer's input, go on."""

    def __init__(self, *, smoothness: float = 0.001) -> None:
        """Set the weight of smooth images where a layer has fewer equations than unknowns."""
        self.smoothness = number("attack.smoothness", smoothness, above=0)

    def run(self, model: nn.Module, task: Task, observations: Sequence[Observation]) -> Reconstruction:
        """Recover the image behind a gradient of one example."""
        started = time.perf_counter()
        observation = checked(observations[-1])
        if observation.num_examples not in (None, 1):
            raise FedsimError(
                f"rgap: expected a batch of one, got {observation.num_examples} examples. "
                "Remedy: federation.batch_size=1, or attack=ig."
            )
        if observation.kind == "update" and (observation.local_steps or 1) > 1:
            raise FedsimError(
                f"rgap: expected one local step, got {observation.local_steps}. Remedy: attack=ig_fedavg."
            )
        factor = gradient_factor(observation)
        gradient = {name: tensor.double() * factor for name, tensor in observation.received.items()}
        sent = {name: tensor.double() for name, tensor in observation.sent.items()}
        *layers, last = chain(model, task)
        last_gradient, error = gradient[f"{last.name}.weight"], gradient[f"{last.name}.bias"]
        if not bool(error.any()):
            raise FedsimError("rgap: the last layer's bias gradient is zero: nothing to divide by")
        values = error @ last_gradient / error.dot(error)  # the input of the last layer
        if float((last_gradient - torch.outer(error, values)).norm()) > 0.01 * float(last_gradient.norm()):
            raise FedsimError("rgap: the gradient is of more than one example. Remedy: attack=ig.")
        label = error.argmin()
        error, misses = error @ sent[f"{last.name}.weight"], list[float]()
        mean, std = (torch.tensor(v, dtype=torch.float64).view(-1, 1, 1) for v in (task.mean, task.std))
        black, white, zero = -mean / std, (1 - mean) / std, mean.new_zeros(1)
        endless = mean.new_full((1,), math.inf)
        for place, layer in reversed(list(enumerate(layers))):
            first = place == 0
            positive = not first and isinstance(layers[place - 1].activation, nn.ReLU | nn.Sigmoid)
            system = LayerSystem.of(layer, sent, gradient, values, error)
            values, miss = system.solve(
                lowest=black.expand(task.input_shape).flatten() if first else zero if positive else -endless,
                highest=white.expand(task.input_shape).flatten() if first else endless,
                quiet=self.smoothness**2 * roughness(task.input_shape) if first else None,
            )
            error = system.forward.T @ system.error
            misses.append(miss)
        counts = torch.zeros(task.num_classes, dtype=torch.int64)
        counts[label] = 1
        return Reconstruction(
            images=(values.view(1, *task.input_shape) * std + mean).clamp(0, 1).float(),
            labels=label[None],
            class_counts=counts,
            class_presence=counts > 0,
            residual=max(misses, default=0.0),
            seconds=time.perf_counter() - started,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Layer:
    """A layer of the chain, and the activation that follows it (none after the last)."""

    name: str
    module: nn.Conv2d | nn.Linear
    activation: nn.Module | None
    in_shape: tuple[int, ...]
    out_shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerSystem:
    """Linear equations for the input of a layer whose output and error are known."""

    layer: Layer
    forward: Tensor  # (outputs, inputs): z = forward a + bias
    wanted: Tensor  # z - bias
    certainty: Tensor  # of each z, from 0 to 1: an error of the activation's value grows by 1 / slope
    error: Tensor  # at z
    backward: Tensor  # (weights, inputs): the weight's gradient = backward a
    gradient: Tensor

    @classmethod
    def of(
        cls, layer: Layer, sent: dict[str, Tensor], gradient: dict[str, Tensor], values: Tensor, error: Tensor
    ) -> "LayerSystem":
        """Undo the activation behind the layer, and write both sets of equations down."""
        assert layer.activation is not None
        outputs, slopes = undo(layer.activation, values)
        weight, error = sent[f"{layer.name}.weight"], error * slopes
        bias = sent.get(f"{layer.name}.bias", weight.new_zeros(len(weight)))
        slope = gradient[f"{layer.name}.weight"]
        if isinstance(layer.module, nn.Linear):  # G = error x^T: all that it says about x is error G
            length = error.norm().clamp(min=1e-300)
            forward, backward = weight, length * torch.eye(weight.shape[1], dtype=weight.dtype)
            slope = error @ slope / length
        else:
            sources = source_indices(layer)
            forward = scatter(sources.T, weight.flatten(1)[:, None, :], layer)
            backward = scatter(sources, error.view(len(weight), 1, -1), layer)
        return cls(
            layer=layer,
            forward=forward,
            wanted=outputs - bias.repeat_interleave(len(outputs) // len(bias)),
            certainty=slopes / slopes.max().clamp(min=1e-300),
            error=error,
            backward=backward,
            gradient=slope.flatten(),
        )

    def solve(self, *, lowest: Tensor, highest: Tensor, quiet: Tensor | None) -> tuple[Tensor, float]:
        """Return the layer's input and how well it fits.

        Where equations are too few, the quadratic form `quiet` chooses (None: the smallest input), and bounds
        of the input and the inactive units (z <= 0) become equations as soon as they are violated.
        """
        known = self.certainty > 0
        rows = torch.cat([self.forward * self.certainty[:, None], self.backward / self._size()])
        right = torch.cat([self.wanted * self.certainty, self.gradient / self._size()])
        square, slope = rows.T @ rows, rows.T @ right
        scale = square.diagonal().mean()
        unknowns = len(square)
        identity = torch.eye(unknowns, dtype=square.dtype)
        if int(known.sum()) + len(self.gradient) >= 1.2 * unknowns:
            found = torch.linalg.solve(square + 1e-13 * scale * identity, slope)
        else:
            square = square + scale * (1e-6 * identity if quiet is None else quiet)
            silent = self.forward[~known] if isinstance(self.layer.activation, nn.ReLU) else self.forward[:0]
            limit = self.wanted[~known][: len(silent)]
            found = torch.linalg.solve(square, slope)
            for _ in range(SOLVES):
                loud = silent @ found > limit
                inside = found.clamp(lowest, highest)
                outside = scale * (found != inside)
                more = silent[loud].T @ silent[loud] + torch.diag(outside)
                found = torch.linalg.solve(
                    square + more, slope + silent[loud].T @ limit[loud] + outside * inside
                )
        return found, float((rows @ found - right).norm() / right.norm())

    def _size(self) -> Tensor:
        """Bring both sets of equations to one scale."""
        rows, columns = self.backward.norm(dim=1).mean(), self.forward.norm(dim=1).mean()
        size: Tensor = rows / columns
        return size.clamp(min=1e-300)


def chain(model: nn.Module, task: Task) -> list[Layer]:
    """Return the model's layers in order, or say why it is no plain chain."""
    probe, logits, calls = module_calls(model, task)
    layers, reached = list[Layer](), probe
    for call in calls:
        name, module, entering, leaving = call.name, call.module, call.entering, call.leaving
        if entering is not reached and not torch.equal(entering, reached):
            raise FedsimError(f"rgap: layer {name!r} does not follow the one before it. Remedy: attack=ig.")
        reached = leaving
        if isinstance(module, nn.Conv2d | nn.Linear):
            if not layers:
                enters_as_image(probe, entering, task)
            shapes = {"in_shape": tuple(entering.shape[1:]), "out_shape": tuple(leaving.shape[1:])}
            layers.append(Layer(name=name, module=module, activation=None, **shapes))
        elif isinstance(module, nn.Sigmoid | nn.Tanh | nn.ReLU | nn.LeakyReLU) and layers:
            layers[-1] = dataclasses.replace(layers[-1], activation=module)
        elif not isinstance(module, TRANSPARENT) and (layers or not enters_as_image(probe, leaving, task)):
            raise FedsimError(
                f"rgap cannot undo layer {name!r} ({type(module).__name__}). "
                "Remedy: attack=gauss_newton or attack=ig."
            )
    activations = [layer.activation for layer in layers]
    if (
        not torch.equal(reached, logits)
        or not layers
        or None in activations[:-1]
        or activations[-1] is not None
    ):
        raise FedsimError("rgap: the model is no plain chain of layers and activations. Remedy: attack=ig.")
    if layers[-1].module.bias is None:
        raise FedsimError("rgap: the last layer has no bias to divide by. Remedy: attack=ig.")
    return layers


def undo(activation: nn.Module, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return what entered an activation and its slope there; slope 0 where nothing can be said."""
    if isinstance(activation, nn.Sigmoid):
        values = values.clamp(1e-9, 1 - 1e-9)
        return values.logit(), values * (1 - values)
    if isinstance(activation, nn.Tanh):
        values = values.clamp(-1 + 1e-9, 1 - 1e-9)
        return values.atanh(), 1 - values.square()
    slope = activation.negative_slope if isinstance(activation, nn.LeakyReLU) else 0.0
    active = values > 1e-6 * values.abs().max()
    if slope == 0:
        return values * active, active.double()
    return torch.where(active, values, values / slope), torch.where(active, values.new_tensor(1.0), slope)


def source_indices(layer: Layer) -> Tensor:
    """Return which input meets which weight at which output place (weights a channel, places).

    Padding is an input of its own, after all others.
    """
    inputs, module = math.prod(layer.in_shape), layer.module
    assert isinstance(module, nn.Conv2d)
    if module.groups != 1 or module.padding_mode != "zeros" or isinstance(module.padding, str):
        raise FedsimError(f"rgap: convolution {layer.name!r} is grouped or padded in an unusual way")
    numbers = torch.arange(1, inputs + 1, dtype=torch.float64).view(1, *layer.in_shape)
    places = functional.unfold(numbers, module.kernel_size, module.dilation, module.padding, module.stride)
    found = places[0].long() - 1  # padding: -1
    return torch.where(found < 0, inputs, found)


def scatter(sources: Tensor, factors: Tensor, layer: Layer) -> Tensor:
    """Return the matrix (channels x rows of sources, inputs) with these factors at their sources."""
    inputs = math.prod(layer.in_shape)
    shape = (len(factors), *sources.shape)
    matrix = factors.new_zeros(shape[0], shape[1], inputs + 1)
    matrix.scatter_add_(2, sources.expand(shape), factors.expand(shape))
    return matrix[:, :, :inputs].reshape(-1, inputs)


def roughness(shape: tuple[int, ...]) -> Tensor:
    """Return the quadratic form of squared differences between neighbouring pixels."""
    numbers = torch.arange(math.prod(shape)).view(shape)
    form = torch.zeros(numbers.numel(), numbers.numel(), dtype=torch.float64)
    for left, right in (
        (numbers[..., :, 1:], numbers[..., :, :-1]),
        (numbers[..., 1:, :], numbers[..., :-1, :]),
    ):
        one, two = left.flatten(), right.flatten()
        ones = torch.ones(len(one), dtype=torch.float64)
        for row, column, sign in ((one, one, 1), (two, two, 1), (one, two, -1), (two, one, -1)):
            form.index_put_((row, column), sign * ones, accumulate=True)
    return form
