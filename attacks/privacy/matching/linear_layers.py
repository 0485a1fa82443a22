"""The first linear layers of a model: their gradients are sums of outer products with what enters them."""

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedsim.attacks.privacy.matching.module_calls import module_calls
from fedsim.attacks.privacy.matching.normalisation import enters_as_image
from fedsim.core.errors import FedsimError
from fedsim.core.types import Observation, Task

ROUNDING = 1e-7  # of float32, relative to the largest singular value
STANDS_OUT = 3.0  # an example's singular value over the largest of noise
CLEAR_GAP = 100.0  # between singular values of examples and those of noise


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearLayer:
    """z = W x + b as it was sent, and its gradient, in float64; [G | g] = D^T [X | 1]."""

    name: str
    weight: Tensor  # (out, in)
    bias: Tensor
    weight_gradient: Tensor
    bias_gradient: Tensor
    task_shape: tuple[int, ...] | None  # of the images, where x is an image in normalised units

    @property
    def augmented(self) -> Tensor:
        """The gradient of weight and bias side by side."""
        return torch.cat([self.weight_gradient, self.bias_gradient[:, None]], dim=1)

    @property
    def rank(self) -> int | None:
        """The number of different examples behind the gradient, where its singular values show one."""
        return clear_rank(self.augmented)

    def examples(self, observation: Observation) -> int:
        """Return the number of examples: disclosed, or what the singular values show."""
        if (size := observation.num_examples or self.rank) is None:
            raise FedsimError(
                "the gradient does not show how many examples it is of. "
                "Remedy: add num_examples to federation.disclose."
            )
        return size

    def different(self, size: int) -> int:
        """Return how many of `size` examples are not lost in the rounding that later singular values show.

        Equal examples are one; those without loss are none.
        """
        values = torch.linalg.svdvals(self.augmented)
        if size >= len(values) - 1:  # the last is zero where rows sum to zero, as those of logits do
            rank = self.rank
            return size if rank is None else min(size, rank)
        return max(1, int((values[:size] > STANDS_OUT * values[size]).sum()))

    def expect_room(self, size: int, *, each: int = 1) -> None:
        """Refuse a batch that the gradient is too small to hold, with so many units for `each` example."""
        if each * size > min(self.augmented.shape):
            raise FedsimError(
                f"linear layer {self.name!r} has {len(self.weight)} units and {self.weight.shape[1]} inputs: "
                f"expected at least {each * size} for {size} examples. "
                "Remedy: smaller batches, a wider layer, or attack=ig."
            )


@dataclass(frozen=True, kw_only=True, eq=False)
class Between:
    """What acts between two linear layers, with kinks that can be rounded off."""

    modules: tuple[nn.Module, ...]

    def __call__(self, values: Tensor, width: Tensor | None = None) -> Tensor:
        """Act; kinks of ReLUs are as wide as said: so a search sees from one side what lies on the other."""
        for module in self.modules:
            kink = 1.0 if isinstance(module, nn.ReLU) else 1.0 - getattr(module, "negative_slope", 1.0)
            if width is not None and isinstance(module, nn.ReLU | nn.LeakyReLU):
                values = (1 - kink) * values + kink * width * nn.functional.softplus(values / width)
            else:
                values = module(values)
        return values

    @property
    def kinked(self) -> bool:
        """Whether it is linear on both sides of kinks: then errors do not tell the input between them."""
        return any(isinstance(module, nn.ReLU | nn.LeakyReLU) for module in self.modules)


@dataclass(frozen=True, kw_only=True, eq=False)
class Chain:
    """A model's linear layers in order of action, and what acts between each and the next."""

    names: list[str]
    between: list[Between]
    begins_with_image: bool  # what enters the first is the normalised image, not features
    ends_with_logits: bool


def linear_names(model: nn.Module, task: Task) -> Chain:
    """Find a model's linear layers by running it once and noting which modules act in which order.

    Layers before the first linear one (convolutions) are left alone: its inputs are features then.
    """
    probe, logits, calls = module_calls(model, task)
    places = [place for place, call in enumerate(calls) if isinstance(call.module, nn.Linear)]
    if not places:
        raise FedsimError("the model has no linear layer, whose inputs this attack reads. Remedy: attack=ig.")
    is_image = enters_as_image(probe, calls[places[0]].entering, task)
    between = list[Between]()
    for left, right in itertools.pairwise(places):
        between.append(Between(modules=tuple(call.module for call in calls[left + 1 : right])))
        if not torch.equal(between[-1](calls[left].leaving), calls[right].entering):
            raise FedsimError(
                f"more than modules acts between {calls[left].name!r} and {calls[right].name!r}. "
                "Remedy: a model whose activations are modules, or attack=ig."
            )
    return Chain(
        names=[calls[place].name for place in places],
        between=between,
        begins_with_image=is_image,
        ends_with_logits=calls[places[-1]].leaving is logits,
    )


def linear_chain(
    model: nn.Module, task: Task, observation: Observation
) -> tuple[list[LinearLayer], list[Between]]:
    """Return the model's linear layers with their gradients, in order, and what acts between them."""
    chain = linear_names(model, task)
    layers = [
        linear_layer(name, observation, task.input_shape if not place and chain.begins_with_image else None)
        for place, name in enumerate(chain.names)
    ]
    return layers, chain.between


def clear_rank(matrix: Tensor) -> int | None:
    """Return the rank of a matrix where its singular values fall steeply, or None."""
    values = torch.linalg.svdvals(matrix)
    gaps = values[:-1] / values[1:].clamp(min=max(float(values[0]) * ROUNDING, 1e-300))
    return int(gaps.argmax()) + 1 if float(gaps.max()) > CLEAR_GAP else None


def input_span(layer: LinearLayer, size: int) -> tuple[Tensor, Tensor]:
    """Return origin and orthonormal basis (size - 1, in) of the affine space of a layer's inputs."""
    point, directions = affine_span(row_space(layer.augmented, size))
    return point[:-1], directions[:, :-1]


def row_space(matrix: Tensor, rank: int) -> Tensor:
    """Return an orthonormal basis (rank, columns) of the leading row space."""
    rows: Tensor = torch.linalg.svd(matrix, full_matrices=False)[2]
    return rows[:rank]


def affine_span(basis: Tensor, ones: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the vectors [x | 1] of a row space: a point, and orthonormal directions.

    ones: what reads the 1 off a vector, where they are in other coordinates; None: its last entry.
    """
    last = basis[:, -1] if ones is None else basis @ ones
    point = (last / last.dot(last)) @ basis
    return point, torch.linalg.svd(last[None])[2][1:] @ basis


def linear_layer(name: str, observation: Observation, shape: tuple[int, ...] | None) -> LinearLayer:
    """Return a layer as it was sent, with its gradient; `shape` where images enter it."""
    weight, bias = f"{name}.weight", f"{name}.bias"
    if bias not in observation.sent:
        raise FedsimError(
            f"linear layer {name!r} has no bias, whose gradient fixes the scale of its inputs. "
            "Remedy: a model with biases, or attack=ig."
        )
    return LinearLayer(
        name=name,
        weight=observation.sent[weight].double(),
        bias=observation.sent[bias].double(),
        weight_gradient=observation.received[weight].double(),
        bias_gradient=observation.received[bias].double(),
        task_shape=shape,
    )
