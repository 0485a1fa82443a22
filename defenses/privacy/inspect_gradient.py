"""A client that looks at its own gradient, and does not send one that single examples stand alone in.

Paper: D-SNR of Garov, Dimitrov, Jovanovic and Vechev, Hiding in Plain Sight (ICLR 2024); arXiv
    2511.10502.

Looked at, of every linear layer: how much of what goes back through it is one example's; units that one
example alone makes fire; units that nothing reaches; the loss. A client with few examples cannot tell,
and does not look. Limits were calibrated on honest trainings: docs/crafted.md says for which rate of
false alarms.
"""

import math

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from fedsim.core.errors import Refused
from fedsim.core.interfaces import Defense, LocalStep
from fedsim.core.settings import number
from fedsim.core.types import Weights

FEWEST = 8  # examples, and units, from which on there is something to tell


class InspectGradient(Defense):
    """Refuses to send a gradient in which one example dominates, or units see single examples."""

    inspects = True

    def __init__(
        self, *, dominance: float = 0.9, alone: float = 0.8, silent: float = 0.95, loss: float = 30.0
    ) -> None:
        """Set limits: one example's share, share of units of one example, of silent units, loss in ln C."""
        self.limits = {
            "dominance": number("defense.inspect_gradient.dominance", dominance, above=0),
            "alone": number("defense.inspect_gradient.alone", alone, above=0),
            "silent": number("defense.inspect_gradient.silent", silent, above=0),
            "loss": number("defense.inspect_gradient.loss", loss, above=0),
        }

    def on_gradient(self, gradient: Weights, step: LocalStep, generator: Generator) -> Weights:
        """Return the gradient as it is, or refuse."""
        words = {
            "dominance": "one example's share of what goes back through",
            "alone": "share of units that one example alone reaches in",
            "silent": "share of units that no example reaches in",
            "loss": "loss, by the logarithm of the number of classes, of",
        }
        for name, (value, where) in gradient_signs(step).items():
            if not value <= self.limits[name]:  # what is no number, too
                raise Refused(
                    f"inspect_gradient: {words[name]} {where!r}: expected at most {self.limits[name]:.3g}, "
                    f"got {value:.3g}"
                )
        return gradient


def gradient_signs(step: LocalStep) -> dict[str, tuple[float, str]]:
    """Return the largest sign of each kind, and the layer that shows it."""
    found = dict.fromkeys(("dominance", "alone", "silent", "loss"), (0.0, ""))
    examples = len(step.images)
    if examples < FEWEST:
        return found
    layers = {n: m for n, m in step.model.named_modules() if isinstance(m, nn.Linear)}
    passed: dict[str, list[Tensor]] = {}

    def noting(name: str) -> torch.utils.hooks.RemovableHandle:
        def note(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            passed[name] = [output, inputs[0]] if inputs[0].requires_grad else [output]

        return layers[name].register_forward_hook(note)

    handles = [noting(name) for name in layers]
    try:
        with torch.enable_grad():
            logits = step.model(step.images)
            loss = functional.cross_entropy(logits, step.labels)
        wanted = [tensor for tensors in passed.values() for tensor in tensors]
        slopes = iter(torch.autograd.grad(loss, wanted, allow_unused=True) if wanted else ())
    finally:
        for handle in handles:
            handle.remove()

    def signs(kind: str, value: float, where: str) -> None:
        if not value <= found[kind][0]:
            found[kind] = value, where

    signs("loss", float(loss.detach()) / math.log(max(2, logits.shape[-1])), "the model")
    for name, tensors in passed.items():
        outputs = next(slopes)
        back = next(slopes) if len(tensors) > 1 else None
        for errors in (outputs, back):
            if errors is not None and len(errors) == examples:
                sizes = errors.flatten(1).norm(dim=1)
                signs("dominance", float(sizes.max() / sizes.sum().clamp(min=1e-30)), name)
        if outputs is not None and len(outputs) == examples and outputs.flatten(1).shape[1] >= FEWEST:
            errors = outputs.flatten(1).abs()
            reached = errors.amax(dim=0) > 0
            signs("silent", float((~reached).float().mean()), name)
            if bool(reached.any()):
                most = errors.amax(dim=0)[reached] / errors.sum(dim=0)[reached]
                signs("alone", float((most > 0.9).float().mean()), name)
    return found
