"""What every label attack reads: the last linear layer and its gradient."""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fedsim.attacks.privacy.claims import checked, gradient_factor
from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Attack
from fedsim.core.types import Observation, PublicImages, Task, Weights
from fedsim.models.batch_norm import set_batch_norm
from fedsim.models.last_linear import last_linear_name, layer_inputs


@dataclass(frozen=True, kw_only=True, eq=False)
class LastLayer:
    """The last layer z = W e + b as the server sent it, and the batch-mean gradient, all in float64."""

    weight: Tensor  # W (C, m)
    bias: Tensor  # b (C)
    weight_gradient: Tensor  # G (C, m)
    bias_gradient: Tensor  # g (C)
    num_examples: int | None  # K; None: not disclosed


def received_layer(
    model: nn.Module, task: Task, observation: Observation, *, up_to_scale: bool = False
) -> LastLayer:
    """Read the last linear layer and its mean gradient out of an observation, as they came.

    up_to_scale: signs are enough, so an update needs neither learning rate nor number of steps.
    """
    name = last_linear_name(model, task.input_shape)
    scale = _gradient_scale(checked(observation), up_to_scale)
    weight, bias = f"{name}.weight", f"{name}.bias"
    return LastLayer(
        weight=observation.sent[weight].double(),
        bias=observation.sent[bias].double(),
        weight_gradient=observation.received[weight].double() * scale,
        bias_gradient=observation.received[bias].double() * scale,
        num_examples=observation.num_examples,
    )


def last_layer(model: nn.Module, task: Task, observation: Observation) -> LastLayer:
    """Read the last linear layer and its mean gradient, with what a defense took of the bias put right."""
    layer = received_layer(model, task, observation)
    bias_gradient = restore_removed(layer.bias_gradient, layer.weight_gradient)
    if observation.defense is not None:
        name, scale = last_linear_name(model, task.input_shape), abs(_gradient_scale(observation, False))
        bias_gradient = without_noise(
            bias_gradient,
            layer.weight_gradient,
            observation.defense.deviation(observation.received[f"{name}.bias"]) * scale,
            observation.defense.deviation(observation.received[f"{name}.weight"]) * scale,
        )
    return replace(layer, bias_gradient=bias_gradient)


def named_classes(
    attack: Attack, model: nn.Module, task: Task, observations: Sequence[Observation]
) -> Tensor:
    """Return the classes that another attack says are there, as a mask."""
    present = attack.run(model, task, observations).class_presence
    if present is None or not bool(present.any()):
        raise FedsimError(
            f"attack.classes: {type(attack).__name__} names no class to restrict to. "
            "Remedy: attack.classes=null."
        )
    return present


def restore_removed(bias_gradient: Tensor, weight_gradient: Tensor) -> Tensor:
    """Estimate entries of the bias gradient that a sparsifying client set to zero.

    G_i is about g_i mu for one pooled embedding mu, so the entries of G_i that survived tell g_i. What was
    removed is no larger than what was kept. A row with fewer than three survivors stays at zero.
    """
    removed = bias_gradient == 0
    if not bool(removed.any()) or bool(removed.all()):
        return bias_gradient
    kept = bias_gradient[~removed]
    pooled = weight_gradient[~removed].T @ kept / kept.dot(kept)
    survivors = (weight_gradient[removed] != 0).to(pooled)
    projected = weight_gradient[removed] @ pooled / (survivors @ pooled.square()).clamp(min=1e-300)
    limit = float(kept.abs().min())
    restored = bias_gradient.clone()
    restored[removed] = torch.where(survivors.sum(dim=1) >= 3, projected, 0.0).clamp(-limit, limit)
    return restored


def without_noise(
    bias_gradient: Tensor, weight_gradient: Tensor, bias_noise: float, weight_noise: float
) -> Tensor:
    """Take out of the bias gradient what noise of these known deviations explains.

    [G | g] is nearly g [mu | 1]^T for one pooled embedding mu, so g lies near the first left singular vector,
    which many columns tell better than g alone. What of g lies beside it is shrunk by the share that noise
    accounts for (Stein), and the less the more that vector is itself lost in the noise.
    """
    if bias_noise == 0 or weight_noise == 0:
        return bias_gradient
    known = torch.cat([weight_gradient / weight_noise, bias_gradient[:, None] / bias_noise], dim=1)
    left, sizes, _ = torch.linalg.svd(known, full_matrices=False)
    along = left[:, 0] * left[:, 0].dot(bias_gradient)
    beside = float((bias_gradient - along).square().sum())
    explained = min(1.0, (len(along) - 1) * bias_noise**2 / max(beside, 1e-300))
    if not bool(sizes[0] > 0):
        return bias_gradient
    edge = sum(math.sqrt(size) for size in known.shape)  # the largest singular value of unit noise
    clear = max(0.0, 1 - (edge / float(sizes[0])) ** 2)
    return torch.lerp(bias_gradient, along, explained * clear)


def public_outputs(
    model: nn.Module, task: Task, seen: Observation, weights: Weights, public: PublicImages
) -> tuple[Tensor, Tensor]:
    """Return the embeddings (N, m) and logits (N, C) of public images at these weights, in float64.

    Where the client's BatchNorm saw the private batch's own statistics, the images come in batches of about
    that size, so that theirs are as far from the mean and as spread.
    """
    own, images = copy.deepcopy(model), public.images
    set_batch_norm(own, seen.batch_norm)
    size = 250
    if seen.batch_norm == "train" and seen.num_examples is not None:
        batches = len(images) * (seen.local_steps or 1) / seen.num_examples
        size = math.ceil(len(images) / max(1, round(batches)))
    name = last_linear_name(model, task.input_shape)
    embeddings, logits = layer_inputs(own, name, weights, images, size)
    return embeddings.double(), logits.double()


def class_means(values: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Return the mean of the rows of each class; of all rows for a class that has none."""
    means = values.mean(dim=0).repeat(num_classes, 1)
    for label in torch.unique(labels).tolist():
        means[label] = values[labels == label].mean(dim=0)
    return means


def _gradient_scale(observation: Observation, up_to_scale: bool) -> float:
    """Return the factor that turns what was received into a mean gradient."""
    if up_to_scale:
        return 1.0 if observation.kind == "gradient" else -1.0
    return gradient_factor(observation)
