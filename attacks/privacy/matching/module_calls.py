"""Which modules of a model act, in which order, on what: seen by running it once."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedsim.core.types import Task


@dataclass(frozen=True, kw_only=True, eq=False)
class Call:
    """A module without children at work."""

    name: str
    module: nn.Module
    entering: Tensor
    leaving: Tensor


def module_calls(model: nn.Module, task: Task) -> tuple[Tensor, Tensor, list[Call]]:
    """Run a model on two random images; return these, the logits, and every call of a leaf module."""
    calls = list[Call]()

    def note(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        return lambda module, inputs, output: calls.append(
            Call(name=name, module=module, entering=inputs[0], leaving=output)
        )

    leaves = [(name, module) for name, module in model.named_modules() if not list(module.children())]
    handles = [module.register_forward_hook(note(name)) for name, module in leaves]
    own = next(model.parameters())
    probe = torch.rand(2, *task.input_shape, generator=torch.Generator().manual_seed(0)).to(own)
    try:
        with torch.no_grad():
            logits = model(probe)
    finally:
        for handle in handles:
            handle.remove()
    return probe, logits, calls


def outputs_size(model: nn.Module, task: Task) -> int:
    """Return how many numbers all layers of a model give out for an image."""
    sizes = list[int]()

    def note(module: nn.Module, inputs: object, output: object) -> None:
        given = output if isinstance(output, tuple | list) else (output,)
        sizes.extend(part.numel() for part in given if isinstance(part, Tensor))

    leaves = [module for module in model.modules() if not list(module.children())]
    handles = [module.register_forward_hook(note) for module in leaves]
    try:
        with torch.no_grad():
            model(torch.zeros(2, *task.input_shape).to(next(model.parameters())))
    finally:
        for handle in handles:
            handle.remove()
    return sum(sizes) // 2
