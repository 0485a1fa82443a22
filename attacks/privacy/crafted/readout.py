"""The layer that a malicious server reads images off: the first linear one, with a ReLU behind it.

Unit j fires for the images on one side of a threshold, and its gradient is the sum of their inputs, each
times its error. A plan says which images make which unit fire; the layer behind passes errors on unchanged.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedsim.attacks.privacy.claims import checked, gradient_factor, local_training
from fedsim.attacks.privacy.crafted.carry import Carriage, carriage_of
from fedsim.attacks.privacy.exact.behind import Behind, behind
from fedsim.attacks.privacy.matching.linear_layers import LinearLayer, linear_chain, linear_names
from fedsim.core.errors import FedsimError
from fedsim.core.randomness import generator
from fedsim.core.types import Observation, PublicImages, Task, Weights
from fedsim.models.last_linear import layer_inputs

LEVEL = 0.3  # of what the layer behind adds to logits: small, so that softmax is nearly even
SYNTHETIC = 500  # made-up images that stand for the clients' where the server has none


@dataclass(frozen=True, kw_only=True, eq=False)
class Place:
    """Where the readout layer is, and what enters it."""

    layer: str
    next: str
    carriage: Carriage | None  # what convolutions carry to it; None: images enter


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """Units to send: rows, thresholds, and which column of errors each of them gets."""

    rows: Tensor  # (units, in)
    thresholds: Tensor  # (units,): unit j fires where rows_j x > thresholds_j
    levels: Tensor  # (units,) whole numbers: units of one level get the same errors


def find_place(model: nn.Module, task: Task) -> Place:
    """Find the readout layer of a model, or say why it has none."""
    chain = linear_names(model, task)
    if len(chain.names) < 2 or not chain.ends_with_logits:
        raise FedsimError(
            "expected a model with a hidden linear layer whose units can be thresholds, got the linear "
            f"layers {chain.names}. Remedy: model=mlp or model=lenet5."
        )
    acts = chain.between[0].modules
    if not any(isinstance(act, nn.ReLU) for act in acts):
        raise FedsimError(
            f"expected a ReLU behind layer {chain.names[0]!r}, got {[type(act).__name__ for act in acts]}: "
            "other units do not fall silent. Remedy: model.activation=relu, or attack=stein_exact."
        )
    layer = model.get_submodule(chain.names[0])
    if not isinstance(layer, nn.Linear) or layer.bias is None:
        raise FedsimError(f"layer {chain.names[0]!r} has no bias. Remedy: a model with biases.")
    carriage = None if chain.begins_with_image else carriage_of(model, task, chain.names[0])
    return Place(layer=chain.names[0], next=chain.names[1], carriage=carriage)


def images_of(task: Task, public: PublicImages | None, seed: int) -> Tensor:
    """Return images that thresholds are set by: public ones, or made-up ones.

    Made-up images are noise of several grains, with the task's mean and deviation.
    """
    if public is not None:
        return public.images.float()
    random, (channels, height, width) = generator(seed, "made-up images"), task.input_shape
    values = torch.zeros(SYNTHETIC, channels, height, width)
    for grain in (2, 4, 8, 16):
        coarse = torch.randn(SYNTHETIC, channels, grain, grain, generator=random)
        values += nn.functional.interpolate(coarse, (height, width), mode="bilinear") / 1.3
    mean, std = (torch.tensor(numbers).view(1, -1, 1, 1) for numbers in (task.mean, task.std))
    return (values * std + mean).clamp(0, 1)


def entering(model: nn.Module, place: Place, weights: Weights, images: Tensor) -> Tensor:
    """Return what enters the readout layer for these images (N, in)."""
    return layer_inputs(model, place.layer, weights, images)[0]


def carrying(place: Place, weights: Weights) -> dict[str, Tensor]:
    """Return the weights with convolutions that carry pixels to the readout layer, if there are any."""
    return dict(weights) | ({} if place.carriage is None else place.carriage.tensors)


def crafted(place: Place, weights: Weights, plan: Plan) -> Weights:
    """Return the weights with the plan's units, and a layer behind that treats units of a level alike."""
    sent, units = dict(weights), len(plan.rows)
    kind = weights[f"{place.layer}.weight"].dtype
    sent[f"{place.layer}.weight"] = plan.rows.to(kind).contiguous()
    sent[f"{place.layer}.bias"] = -plan.thresholds.to(kind)
    columns = level_columns(len(weights[f"{place.next}.weight"]), int(plan.levels.max()) + 1)
    size = float((plan.rows.norm(dim=1) * math.sqrt(plan.rows.shape[1])).mean())
    sent[f"{place.next}.weight"] = (LEVEL / units / size * columns[:, plan.levels]).to(kind).contiguous()
    if f"{place.next}.bias" in weights:
        sent[f"{place.next}.bias"] = torch.full_like(weights[f"{place.next}.bias"], 0.0)
    return sent


def level_columns(outputs: int, levels: int) -> Tensor:
    """Return (outputs, levels): distinct numbers far from their mean, in another order for each level."""
    number = torch.arange(outputs, dtype=torch.float64)
    alpha = (1 - 2 * (number % 2)) * (1 + number / outputs)
    orders = [torch.randperm(outputs, generator=generator(0, "levels", level)) for level in range(levels)]
    orders[0] = torch.arange(outputs)
    return torch.stack([alpha[order] for order in orders], dim=1)


@dataclass(frozen=True, kw_only=True, eq=False)
class Readout:
    """The readout layer as it was sent, the network behind it, and the mean gradient of one step."""

    weight: Tensor  # (units, in)
    bias: Tensor
    gradient: Tensor  # [G | g]
    behind: Behind
    low: Tensor  # (in,): the least that can enter
    high: Tensor
    classes: int

    def part(self, units: Tensor, bias: Tensor) -> "Readout":
        """Return it with some of its units, the others being silent, and other biases of these."""
        act, weight, rest = self.behind.steps[0]
        return Readout(
            weight=self.weight[units],
            bias=bias.double(),
            gradient=self.gradient[units],
            behind=Behind(steps=((act, weight[:, units], rest), *self.behind.steps[1:])),
            low=self.low,
            high=self.high,
            classes=self.classes,
        )


def read(model: nn.Module, task: Task, place: Place, observation: Observation) -> Readout:
    """Return what was sent in the readout layer and what came back."""
    steps, _ = local_training(checked(observation))
    if steps > 1:
        raise FedsimError(
            f"expected one local step, got {steps}. Remedy: federation=fedsgd, or federation.local_steps=1."
        )
    layers, between = linear_chain(model, task, observation)
    first: LinearLayer = layers[0]
    if not bool(first.augmented.any()):
        raise FedsimError(
            f"the gradient of layer {place.layer!r} is zero: no unit fired. "
            "Remedy: thresholds of public images (attack.public), or a weaker defense."
        )
    low, high = _box(task, place)
    return Readout(
        weight=first.weight,
        bias=first.bias,
        gradient=first.augmented * gradient_factor(observation),
        behind=behind(layers, between),
        low=low,
        high=high,
        classes=task.num_classes,
    )


def _box(task: Task, place: Place) -> tuple[Tensor, Tensor]:
    """Return the least and the most that can enter the readout layer."""
    mean, std = (torch.tensor(v, dtype=torch.float64).view(-1, 1) for v in (task.mean, task.std))
    channels = task.input_shape[0]
    pixels = math.prod(task.input_shape[1:])
    ends = [((end - mean) / std).expand(channels, pixels) for end in (0.0, 1.0)]
    if place.carriage is None:
        return ends[0].flatten(), ends[1].flatten()
    spread = float((1 / std).max())  # carried pixels begin at 0
    number = sum(view.height * view.width for view in place.carriage.views)
    return torch.zeros(number, dtype=torch.float64), torch.full((number,), spread, dtype=torch.float64)
