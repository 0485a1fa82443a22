"""Which modules of a model act, in which order, on what: seen by running it once."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedsim.types import Task


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
