"""Gradient matching as one function to minimise: variables -> images and labels -> gradient -> distance."""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from fedsim.attacks.privacy import claims
from fedsim.attacks.privacy.matching.module_calls import outputs_size
from fedsim.attacks.privacy.matching.objectives import Distance
from fedsim.attacks.privacy.matching.parametrisations import Pixels
from fedsim.attacks.privacy.matching.priors import Penalty
from fedsim.core.types import Observation, Task, Weights
from fedsim.models.batch_norm import set_batch_norm

COPIES = 4  # of what every layer gives, while a gradient is differentiated
Variables = list[Tensor]  # the point, and the label logits when they are searched for too
Slopes = Callable[[Weights, Tensor, Tensor], Sequence[Tensor]]  # of the loss by the weights
Loss = Callable[[Tensor, Tensor], Tensor]  # of logits and labels, right after the model gave them


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """One private batch to find."""

    round: int
    client: int
    task: Task
    model: nn.Module  # the attack's own copy, holding what was sent
    weights: Weights  # its parameters
    target: tuple[Tensor, ...]  # what came back, as far as it is compared; none: the priors are alone
    used: tuple[bool, ...]  # which of the model's parameters are compared
    known: tuple[Tensor, ...] | None  # factors 0 for entries that the client left out
    size: int  # images in the batch
    candidates: int  # guesses at the same batch that are searched together
    together: bool  # compute their gradients in one go: a third to nine tenths of the time
    steps: int  # local steps between what was sent and what came back
    learning_rate: float | None  # of these steps; None: what came back is a gradient
    labels: Tensor | None  # (K,) when fixed
    parametrisation: Pixels
    distance: Distance
    penalties: tuple[Penalty, ...]
    loss: Loss = functional.cross_entropy

    def value_and_slopes(self, variables: Variables, done: float = 1.0) -> tuple[float, list[Tensor]]:
        """Return the objective, as its mean over the candidates, with the penalties; and its derivatives.

        done: the share of the search that is over.
        """
        for variable in variables:
            variable.requires_grad_(True)
        images, labels = self.parametrisation.images(variables[0]), self.labels_of(variables)
        grouped = images.view(self.candidates, self.size, *images.shape[1:])
        total, outputs, derivatives = 0.0, list[Tensor](), list[Tensor | None]()
        if not self.target:
            pass
        elif self.together:
            outputs += self._compared_together(grouped, labels)
            derivatives += [torch.empty_like(tensor) for tensor in outputs]
            for place in range(self.candidates):
                value, slopes = self.distance([tensor.detach()[place] for tensor in outputs])
                total += value / self.candidates
                for stacked, slope in zip(derivatives, slopes, strict=True):
                    assert stacked is not None
                    stacked[place] = slope / self.candidates
        else:
            for part in grouped:
                guess = self.compared(part, labels)
                value, slopes = self.distance([tensor.detach() for tensor in guess])
                if self.candidates > 1:
                    value, slopes = value / self.candidates, [slope / self.candidates for slope in slopes]
                total += value
                outputs += guess
                derivatives += slopes
        for penalty in self.penalties:
            value, output, derivative = penalty(grouped, done)
            outputs.append(output)
            derivatives.append(derivative)
            total += value
        return total, list(torch.autograd.grad(outputs, variables, derivatives))

    def labels_of(self, variables: Variables) -> Tensor:
        """Return the fixed labels (K,), or the label vectors (K, C) of the searched logits."""
        if self.labels is not None:
            return self.labels
        return variables[1].softmax(dim=1).expand(self.size, -1)

    def compared(self, images: Tensor, labels: Tensor) -> list[Tensor]:
        """Return what the client would have sent for these images, as far as it is compared."""
        pixels = self.parametrisation.pixels(images)
        return self.select(self.reply(pixels, labels, self.weights, self._slopes))

    def _compared_together(self, grouped: Tensor, labels: Tensor) -> list[Tensor]:
        """Return the candidates' gradients, stacked (candidates, ...)."""

        def loss(weights: dict[str, Tensor], pixels: Tensor) -> Tensor:
            return functional.cross_entropy(functional_call(self.model, weights, (pixels,)), labels)

        pixels = self.parametrisation.pixels(grouped.flatten(0, 1)).view_as(grouped)
        weights = {name: tensor.detach() for name, tensor in self.weights.items()}
        return self.select(list(vmap(grad(loss), in_dims=(None, 0))(weights, pixels).values()))

    def reply(self, pixels: Tensor, labels: Tensor, weights: Weights, slopes: Slopes) -> Sequence[Tensor]:
        """Return the client's gradient, or its update after the local steps, on these images."""
        if self.learning_rate is None:
            return slopes(weights, pixels, labels)
        now: Mapping[str, Tensor] = weights
        for some, theirs in zip(pixels.chunk(self.steps), labels.chunk(self.steps), strict=True):
            steps = zip(now.items(), slopes(now, some, theirs), strict=True)
            now = {name: tensor - self.learning_rate * slope for (name, tensor), slope in steps}
        return [now[name] - tensor for name, tensor in weights.items()]

    def select(self, reply: Sequence[Tensor]) -> list[Tensor]:
        """Leave out what is not compared."""
        kept = [tensor for tensor, used in zip(reply, self.used, strict=True) if used]
        if self.known is None:
            return kept
        return [tensor * known.to(tensor) for tensor, known in zip(kept, self.known, strict=True)]

    def residual(self, images: Tensor, labels: Tensor) -> float:
        """Return the distance of the images' gradient from the observed one, relative to the latter."""
        guess = self.compared(images, labels)
        gap = sum(float((a - b).detach().square().sum()) for a, b in zip(guess, self.target, strict=True))
        size = sum(float(tensor.square().sum()) for tensor in self.target)
        return float((gap / size) ** 0.5) if size > 0 else float("inf")

    def _slopes(self, weights: Weights, pixels: Tensor, labels: Tensor) -> Sequence[Tensor]:
        values = tuple(weights.values())
        own = weights is self.weights  # called plainly: functional_call costs a tenth
        logits = self.model(pixels) if own else functional_call(self.model, dict(weights), (pixels,))
        loss = self.loss(logits, labels)
        return torch.autograd.grad(loss, values, create_graph=True, materialize_grads=True)


def private_copy(
    model: nn.Module, observation: Observation, dtype: torch.dtype, device: torch.device
) -> nn.Module:
    """Return the model as the client ran it, in the attack's precision, free to be hooked and changed."""
    own = copy.deepcopy(model).to(device=device, dtype=dtype).eval()
    with torch.no_grad():
        for name, parameter in own.named_parameters():
            parameter.copy_(observation.sent[name])
            parameter.requires_grad_(True)
    set_batch_norm(own, observation.batch_norm)
    return own


def expect_room(problem: Problem, model: nn.Module, copies: int) -> None:
    """Refuse a batch whose search does not fit into memory; copies: of the variables, that it keeps."""
    claims.expect_images(problem.size, problem.task)
    images, pixels = problem.size * problem.candidates, math.prod(problem.task.input_shape)
    inside = images * outputs_size(model, problem.task)
    inside += problem.steps * sum(tensor.numel() for tensor in problem.weights.values())
    sample = problem.target[0]
    numbers = COPIES * inside + copies * images * pixels
    size_in_bytes = numbers * torch.finfo(sample.dtype).bits // 8
    claims.expect_memory(size_in_bytes, sample.device, f"the search for {problem.size} images")
