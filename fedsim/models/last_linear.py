"""The last linear layer of any model, and what enters it.

It is found by its place, not by its name: it is the linear module whose output is the model's.
"""

import functools

import torch
from torch import Tensor, nn

from fedsim.core.errors import FedsimError
from fedsim.core.types import Weights


@functools.lru_cache(maxsize=4)
def last_linear_name(model: nn.Module, input_shape: tuple[int, ...]) -> str:
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


def last_features(
    model: nn.Module, input_shape: tuple[int, ...], weights: Weights, images: Tensor
) -> tuple[Tensor, Tensor]:
    """Return what enters the last linear layer (N, m), and the logits (N, C), of images at these weights."""
    return layer_inputs(model, last_linear_name(model, input_shape), weights, images)


def layer_inputs(
    model: nn.Module, name: str, weights: Weights, images: Tensor, batch: int = 250
) -> tuple[Tensor, Tensor]:
    """Return what enters a layer, and the logits, of images at these weights, batch by batch."""
    layer, entering = model.get_submodule(name), list[Tensor]()
    handle = layer.register_forward_pre_hook(lambda module, inputs: entering.append(inputs[0]))
    device = next(model.parameters()).device
    placed = {name: tensor.to(device) for name, tensor in weights.items()}
    try:
        with torch.no_grad():
            chunks = torch.split(images.to(device), batch)
            logits = [torch.func.functional_call(model, placed, (chunk,)) for chunk in chunks]
    finally:
        handle.remove()
    return torch.cat(entering).cpu(), torch.cat(logits).cpu()
