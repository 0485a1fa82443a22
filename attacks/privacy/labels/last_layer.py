"""What every label attack reads: the last linear layer and its gradient.

The layer is found by its place, not by its name: it is the linear module whose output is the model's.
"""

import functools
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedsim.errors import FedsimError
from fedsim.types import Observation, PublicImages, Task, Weights


@dataclass(frozen=True, kw_only=True, eq=False)
class LastLayer:
    """The last layer z = W e + b as the server sent it, and the batch-mean gradient, all in float64."""

    weight: Tensor  # W (C, m)
    bias: Tensor  # b (C)
    weight_gradient: Tensor  # G (C, m)
    bias_gradient: Tensor  # g (C)
    num_examples: int | None  # K; None: not disclosed


def last_layer(
    model: nn.Module, task: Task, observation: Observation, *, up_to_scale: bool = False
) -> LastLayer:
    """Read the last linear layer and its mean gradient out of an observation.

    up_to_scale: signs are enough, so an update needs neither learning rate nor number of steps.
    """
    name = last_linear_name(model, task.input_shape)
    scale = _gradient_scale(observation, up_to_scale)
    weight, bias = f"{name}.weight", f"{name}.bias"
    weight_gradient = observation.received[weight].double() * scale
    return LastLayer(
        weight=observation.sent[weight].double(),
        bias=observation.sent[bias].double(),
        weight_gradient=weight_gradient,
        bias_gradient=restore_removed(observation.received[bias].double() * scale, weight_gradient),
        num_examples=observation.num_examples,
    )


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


def public_outputs(
    model: nn.Module, task: Task, weights: Weights, public: PublicImages
) -> tuple[Tensor, Tensor]:
    """Return the embeddings (N, m) and logits (N, C) of public images at these weights, in float64."""
    layer, embeddings = model.get_submodule(last_linear_name(model, task.input_shape)), list[Tensor]()
    handle = layer.register_forward_pre_hook(lambda module, inputs: embeddings.append(inputs[0].double()))
    try:
        with torch.no_grad():
            chunks = torch.split(public.images, 250)
            logits = [torch.func.functional_call(model, dict(weights), (chunk,)).double() for chunk in chunks]
    finally:
        handle.remove()
    return torch.cat(embeddings), torch.cat(logits)


def class_means(values: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Return the mean of the rows of each class; of all rows for a class that has none."""
    means = values.mean(dim=0).repeat(num_classes, 1)
    for label in torch.unique(labels).tolist():
        means[label] = values[labels == label].mean(dim=0)
    return means


@functools.lru_cache(maxsize=4)
def last_linear_name(model: nn.Module, input_shape: tuple[int, int, int]) -> str:
    """Return the name of the linear layer whose output is the model's output."""
    outputs: dict[str, Tensor] = {}

    def remember(name: str) -> torch.utils.hooks.RemovableHandle:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            outputs[name] = output

        return model.get_submodule(name).register_forward_hook(hook)

    hooks = [remember(name) for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    try:
        with torch.no_grad():
            parameter = next(model.parameters())
            logits = model(torch.zeros(1, *input_shape, dtype=parameter.dtype, device=parameter.device))
    finally:
        for handle in hooks:
            handle.remove()
    for name, output in outputs.items():
        if output is logits:
            if model.get_submodule(name).bias is None:
                raise FedsimError(
                    f"the last layer {name!r} has no bias, whose gradient label restoration divides by. "
                    "Remedy: a model with a biased last layer."
                )
            return name
    raise FedsimError(
        "the model does not end in a linear layer, which label restoration reads. "
        "Remedy: a model whose output is that of an nn.Linear."
    )


def _gradient_scale(observation: Observation, up_to_scale: bool) -> float:
    """Return the factor that turns what was received into a mean gradient."""
    if observation.kind == "gradient":
        return 1.0
    if up_to_scale:
        return -1.0
    if observation.learning_rate is None or observation.local_steps is None:
        raise FedsimError(
            "an update is a gradient only up to the learning rate and the number of local steps, and the "
            "clients do not disclose both. Remedy: add learning_rate and local_steps to federation.disclose."
        )
    if observation.learning_rate == 0:
        raise FedsimError("an update made with learning rate 0 holds no gradient")
    return -1.0 / (observation.learning_rate * observation.local_steps)
