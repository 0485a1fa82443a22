"""The last two linear layers of a model: what a malicious server sends in them, and what comes back.

logits_c = sum_j A_cj act(w_j.x + b) + d_c with A_cj = alpha_c / m, the same for all units j: then the error
of example i at every unit is the one number lambda_i = sum_c A_cj r_ic, where r = (softmax - onehot) / B.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedsim.attacks.privacy.claims import checked, gradient_factor, local_training
from fedsim.attacks.privacy.matching.linear_layers import linear_names
from fedsim.attacks.privacy.stein.quadrature import Activation
from fedsim.core.errors import FedsimError
from fedsim.core.types import Observation, Task, Weights
from fedsim.models.last_linear import layer_inputs

LEVEL = 0.3  # of the output weights: small, so that softmax is nearly even and no lambda_i near zero
PROBES = 64  # images of noise that measure the size of features


@dataclass(frozen=True, kw_only=True, eq=False)
class Form:
    """Where the two layers are, and what acts between them."""

    hidden: str
    output: str
    act: Activation
    takes_images: bool  # normalised ones; otherwise features of the layers before


@dataclass(frozen=True, kw_only=True, eq=False)
class Head:
    """The two layers as they were sent, and the batch-mean gradient of one step, in the sender's floats."""

    weight: Tensor  # (m, d)
    bias: float
    levels: Tensor  # (C,) float64: alpha
    weight_gradient: Tensor
    bias_gradient: Tensor
    output_gradient: Tensor  # (C, m)


def find_head(model: nn.Module, task: Task) -> Form:
    """Find the last two linear layers and the activation between them."""
    chain = linear_names(model, task)
    if len(chain.names) < 2 or not chain.ends_with_logits:
        raise FedsimError(
            "expected a model that ends in two linear layers with an activation between them, "
            f"got the linear layers {chain.names}. Remedy: model=two_layer, or attack=ig."
        )
    act = chain.between[-1]
    try:
        row = torch.linspace(-2, 2, 7, dtype=torch.float64)[None]
        acts_alone = torch.equal(act(row)[:, :3], act(row[:, :3]))
    except (RuntimeError, ValueError):
        acts_alone = False
    if not acts_alone:
        raise FedsimError(
            f"expected an activation that acts on every unit alone between {chain.names[-2]!r} and "
            f"{chain.names[-1]!r}. Remedy: model=two_layer."
        )
    hidden = model.get_submodule(chain.names[-2])
    if not isinstance(hidden, nn.Linear) or hidden.bias is None:
        raise FedsimError(f"layer {chain.names[-2]!r} has no bias. Remedy: model=two_layer.")
    return Form(
        hidden=chain.names[-2],
        output=chain.names[-1],
        act=act,
        takes_images=chain.begins_with_image and len(chain.names) == 2,
    )


def input_norm(model: nn.Module, task: Task, form: Form, weights: Weights) -> float:
    """Return the expected norm of what enters the hidden layer: of features, measured on noise."""
    inputs = weights[f"{form.hidden}.weight"].shape[1]
    if form.takes_images:
        return float(inputs**0.5)  # normalised pixels have a mean square of one
    noise = torch.randn(PROBES, *task.input_shape, generator=torch.Generator().manual_seed(0))
    mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (task.mean, task.std))
    features, _ = layer_inputs(model, form.hidden, weights, (noise * std + mean).clamp(0, 1))
    norm = float(features.norm(dim=1).mean())
    if norm == 0:
        raise FedsimError(
            f"nothing but zeros enters layer {form.hidden!r}. Remedy: another model or checkpoint."
        )
    return norm


def craft_head(
    form: Form, weights: Weights, *, norm: float, scale: float, bias: float, random: torch.Generator
) -> Weights:
    """Return weights with Gaussian units of one bias, and output weights that are alike for all units."""
    crafted, hidden = dict(weights), weights[f"{form.hidden}.weight"]
    classes, units = weights[f"{form.output}.weight"].shape
    drawn = torch.randn(hidden.shape, generator=random, dtype=hidden.dtype)
    crafted[f"{form.hidden}.weight"] = drawn.mul_(scale / norm)
    crafted[f"{form.hidden}.bias"] = torch.full_like(weights[f"{form.hidden}.bias"], bias)
    levels = LEVEL * class_levels(classes) / units
    crafted[f"{form.output}.weight"] = levels[:, None].expand(classes, units).to(hidden.dtype).contiguous()
    if f"{form.output}.bias" in weights:
        crafted[f"{form.output}.bias"] = torch.zeros_like(weights[f"{form.output}.bias"])
    return crafted


def class_levels(classes: int) -> Tensor:
    """Return alpha: different for every class and far from its mean, or errors would cancel."""
    number = torch.arange(classes, dtype=torch.float64)
    return (1 - 2 * (number % 2)) * (1 + number / classes)


def read_head(form: Form, observation: Observation) -> Head:
    """Return what was sent in the two layers and what came back, after checking that it was crafted."""
    steps, _ = local_training(checked(observation))
    if steps > 1:
        raise FedsimError(
            f"expected one local step, got {steps}. Remedy: federation=fedsgd, or attack=ig_fedavg."
        )
    factor = gradient_factor(observation)
    sent, received = observation.sent, observation.received
    output, bias = sent[f"{form.output}.weight"], sent[f"{form.hidden}.bias"]
    if bool((output != output[:, :1]).any()) or bool((bias != bias[0]).any()):
        raise FedsimError(
            f"layers {form.hidden!r} and {form.output!r} do not hold the weights that this attack sends. "
            "Remedy: run the rounds with this attack; it cannot replay those of another."
        )
    gradient = received[f"{form.hidden}.weight"]
    if not bool(gradient.any()) or not bool(received[f"{form.output}.weight"].any()):
        raise FedsimError(
            f"the gradient of {form.hidden!r} or {form.output!r} is zero everywhere: units are saturated, or "
            "nothing was sent. Remedy: another attack.bias, a smaller attack.scale, or a weaker defense."
        )
    if float(output.std()) < 1e-9 * float(output.abs().max()):
        raise FedsimError(
            f"the gradient of {form.hidden!r} vanishes: with equal output weights for every class the errors "
            "of each example add up to zero. Remedy: different levels, as this attack sends them."
        )
    return Head(
        weight=sent[f"{form.hidden}.weight"],
        bias=float(bias[0]),
        levels=output[:, 0].double(),
        weight_gradient=gradient * factor,
        bias_gradient=received[f"{form.hidden}.bias"] * factor,
        output_gradient=received[f"{form.output}.weight"] * factor,
    )


def denormalised(task: Task, inputs: Tensor, clamp: bool = True) -> Tensor:
    """Return inputs of a layer that takes normalised images, as images in [0, 1]."""
    mean, std = (
        torch.tensor(values, dtype=torch.float64).view(1, -1, 1, 1) for values in (task.mean, task.std)
    )
    pixels = inputs.view(-1, *task.input_shape) * std + mean
    return pixels.clamp(0, 1).float() if clamp else pixels
