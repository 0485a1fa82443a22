"""Two linear layers whose private batch is known, with the gradient that a client would send."""

import dataclasses

import torch
from torch import Tensor, nn
from torch.nn import functional

import fedsim
from fedsim.attacks.privacy.stein.head import LEVEL, Form, Head, class_levels
from fedsim.core.interfaces import Attack
from fedsim.core.randomness import generator
from fedsim.core.training import load_weights, weights_of
from fedsim.core.types import Observation
from fedsim.models.layers import activation_layer
from fedsim.testing import small_data, small_model

CLASSES = 5
TASK = small_data().task


@dataclasses.dataclass(frozen=True, kw_only=True)
class Known:
    """A head with its gradient, and all that the attack wants to know."""

    form: Form
    head: Head
    inputs: Tensor  # (n, d), each once
    labels: Tensor  # (n,)
    often: Tensor  # (n,)
    errors: Tensor  # lambda_i

    @property
    def counts(self) -> Tensor:
        return functional.one_hot(self.labels, CLASSES) * self.often[:, None]


def known(activation: str, *, units: int = 60, often: tuple[int, ...] = (1, 1, 2), seed: int = 0) -> Known:
    random = generator(seed, "known head")
    bias = 0.4
    inputs = torch.randn(len(often), 6, generator=random, dtype=torch.float64)
    labels = torch.randint(CLASSES, (len(often),), generator=random)
    weight = 0.4 * torch.randn(units, 6, generator=random, dtype=torch.float64)
    levels = LEVEL * class_levels(CLASSES) / units
    act = activation_layer(activation)
    hidden, shift = (
        weight.clone().requires_grad_(),
        torch.full((units,), bias, dtype=torch.float64).requires_grad_(),
    )
    output = levels[:, None].expand(CLASSES, units).clone().requires_grad_()
    copies = torch.tensor(often)
    x, y = inputs.repeat_interleave(copies, dim=0), labels.repeat_interleave(copies)
    between = act(x @ hidden.T + shift)
    loss = functional.cross_entropy(between @ output.T, y)
    slopes = torch.autograd.grad(loss, (hidden, shift, output, between))
    form = Form(hidden="hidden", output="output", act=act, takes_images=True)
    head = Head(
        weight=weight,
        bias=bias,
        levels=levels,
        weight_gradient=slopes[0],
        bias_gradient=slopes[1],
        output_gradient=slopes[2],
    )
    errors = torch.stack([part[:, 0].sum() for part in slopes[3].split(list(often))])
    return Known(form=form, head=head, inputs=inputs, labels=labels, often=copies, errors=errors)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Played:
    """A batch of images, and what the server that crafted the weights has of it."""

    model: nn.Module
    images: Tensor
    labels: Tensor
    seen: Observation


def played(attack: Attack, *, model: str = "two_layer", size: int = 3, **settings: object) -> Played:
    network = small_model(model, **settings)
    load_weights(network, attack.craft(network, TASK, 1, weights_of(network)))
    images = torch.rand(size, *TASK.input_shape, generator=torch.Generator().manual_seed(5))
    labels = torch.arange(size) % TASK.num_classes
    loss = functional.cross_entropy(network(images), labels)
    gradient = torch.autograd.grad(loss, list(network.parameters()))
    seen = fedsim.observation(network, gradient, num_examples=size)
    return Played(model=network, images=images, labels=labels, seen=seen)
