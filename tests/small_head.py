"""Two linear layers whose private batch is known, with the gradient that a client would send."""

import dataclasses

import torch
from torch import Tensor
from torch.nn import functional

from fedsim.attacks.privacy.stein.head import LEVEL, Form, Head, class_levels
from fedsim.core.randomness import generator
from fedsim.models.layers import activation_layer

CLASSES = 5


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
