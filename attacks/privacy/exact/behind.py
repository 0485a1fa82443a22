"""The network behind a linear layer: what error an example with these outputs and this label has there."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import grad
from torch.nn import functional

from fedsim.attacks.privacy.matching.linear_layers import Between, LinearLayer

STRANGE = 0.3  # relative distance from the error of any label, from which an example is not certified
COPIES = 0.01  # relative distance from several equal examples up to which an error is theirs


@dataclass(frozen=True, kw_only=True, eq=False)
class Behind:
    """Activations and linear layers, in turn, up to the logits; none: the layer gives the logits itself."""

    steps: tuple[tuple[Between, Tensor, Tensor], ...]

    def to(self, kind: torch.dtype) -> "Behind":
        """Return it in another precision."""
        return Behind(steps=tuple((act, w.to(kind), b.to(kind)) for act, w, b in self.steps))

    def logits(self, outputs: Tensor, width: Tensor | None = None) -> Tensor:
        """Return the logits of a layer's outputs (N, units); kinks are as wide as said."""
        for act, weight, bias in self.steps:
            outputs = functional.linear(act(outputs, width), weight, bias)
        return outputs

    def errors(self, outputs: Tensor, labels: Tensor, width: Tensor | None = None) -> Tensor:
        """Return the slope of each example's cross-entropy by its outputs, ready to be derived again."""
        if not self.steps:
            return softmax_error(outputs, labels)
        with torch.enable_grad():
            outputs = outputs if outputs.requires_grad else outputs.detach().requires_grad_()
            loss = functional.cross_entropy(self.logits(outputs, width), labels, reduction="sum")
            return torch.autograd.grad(loss, outputs, create_graph=True)[0]

    def slope_of_loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the same errors as a function that torch.func can derive."""
        if not self.steps:
            return softmax_error(outputs, labels)
        one = functional.one_hot(labels, len(self.steps[-1][2])).to(outputs)
        derived: Tensor = grad(lambda z: -(self.logits(z).log_softmax(dim=1) * one).sum())(outputs)
        return derived

    def after(self, activations: Tensor) -> Tensor:
        """Return the logits of what leaves the first activation."""
        _, weight, bias = self.steps[0]
        return Behind(steps=self.steps[1:]).logits(functional.linear(activations, weight, bias))

    def slopes(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the activation's derivatives (N, units), and those of the logits behind it (N, units, C)."""
        if not self.steps:
            classes = torch.eye(outputs.shape[1], dtype=outputs.dtype)
            return torch.ones_like(outputs), classes.expand(len(outputs), -1, -1)
        act = self.steps[0][0]
        with torch.enable_grad():
            outputs = outputs.detach().requires_grad_()
            own = torch.autograd.grad(act(outputs).sum(), outputs)[0]
            activations = act(outputs).detach().requires_grad_()
            logits = self.after(activations)
            rows = [
                torch.autograd.grad(logits[:, c].sum(), activations, retain_graph=True)[0]
                for c in range(logits.shape[1])
            ]
        return own, torch.stack(rows, dim=2)


def softmax_error(logits: Tensor, labels: Tensor) -> Tensor:
    """Return p - e_y; at y as minus the sum of the others, which stays exact where p_y is nearly 1."""
    chances = logits.softmax(dim=1)
    others = chances.scatter(1, labels[:, None], 0.0)
    return others.scatter(1, labels[:, None], -others.sum(dim=1, keepdim=True))


def behind(layers: Sequence[LinearLayer], between: Sequence[Between]) -> Behind:
    """Return what is behind the first of a chain of linear layers, of which the last gives the logits."""
    return Behind(
        steps=tuple((act, layer.weight, layer.bias) for act, layer in zip(between, layers[1:], strict=True))
    )


def read_labels(behind: Behind, outputs: Tensor, errors: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Read the label of each example from its error at a layer, and how many equal examples it stands for.

    The error of one of K examples is J^T (p - e_y) / K for the one label y. Its length tells y as well as its
    direction does, which float32 turns where p_y is nearly 1.
    """
    times, gaps = _gaps(behind, outputs, errors, size)
    least, labels = gaps.min(dim=1)
    copies = times.gather(1, labels[:, None])[:, 0].long()
    copies = torch.where(least < COPIES, copies, 1)
    if len(copies) == size or int(copies.sum()) > size:
        copies = torch.ones_like(copies)
    return labels, copies


def errors_of_labels(behind: Behind, outputs: Tensor) -> Tensor:
    """Return the errors (N, units, C) that examples with these outputs have, one for each label."""
    slopes, rest, others = _logit_slopes(behind, outputs)
    return rest - others[:, None, :] * slopes


def mismatch(behind: Behind, outputs: Tensor, errors: Tensor, size: int) -> Tensor:
    """Return how far errors (N, units) in a mean of `size` examples are, relatively, from any label's."""
    least: Tensor = _gaps(behind, outputs, errors, size)[1].amin(dim=1)
    return least


def alone(behind: Behind, outputs: Tensor, errors: Tensor, size: int) -> Tensor:
    """Say whose errors are those of one example each: a mixture of twins has the errors of both."""
    times, gaps = _gaps(behind, outputs, errors, size)
    least, labels = gaps.min(dim=1)
    found: Tensor = (times.gather(1, labels[:, None])[:, 0] == 1) & (least < STRANGE)
    return found


def _gaps(behind: Behind, outputs: Tensor, errors: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return how often an example of each label is there (N, C), and how far from that its error is.

    One that is there several times must fit so much the better.
    """
    guesses = errors_of_labels(behind, outputs) / size
    times = (errors.norm(dim=1, keepdim=True) / guesses.norm(dim=1).clamp(min=1e-300)).round().clamp(min=1)
    gaps = (errors[:, :, None] - times[:, None, :] * guesses).norm(dim=1)
    return times, times * gaps / errors.norm(dim=1, keepdim=True).clamp(min=1e-300)


def rounded_label(
    behind: Behind, outputs: Tensor, columns: Tensor, scales: Tensor
) -> tuple[int, float, float]:
    """Return the label of an example with these outputs (1, units), and 1 - p_y as its client rounded it.

    And the share of its error that then lies outside the column space.

    float32 rounds p_y - 1 by 6e-8, often to 0; so that number is left free, and the label is the one with
    which the error lies in the column space. columns: its orthonormal basis; scales: of rows, there.
    """
    slopes, rest = (part[0] * scales for part in _logit_slopes(behind, outputs)[:2])
    outside, free = (side - columns @ (columns.T @ side) for side in (rest, slopes))
    steps = (outside * free).sum(dim=0) / free.square().sum(dim=0).clamp(min=1e-300)
    lengths = (rest - steps * slopes).norm(dim=0).clamp(min=1e-300)
    shares = (outside - steps * free).norm(dim=0) / lengths
    label = int(shares.argmin())
    return label, float(steps[label]), float(shares[label])


def rounded_errors(
    behind: Behind, outputs: Tensor, columns: Tensor, scales: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Return an example's errors at a layer and the next, as its client rounded them, of rows so scaled."""
    label, step, _ = rounded_label(behind, outputs, columns, scales[0])
    act, weight, bias = behind.steps[0]
    rest, next_outputs = Behind(steps=behind.steps[1:]), functional.linear(act(outputs), weight, bias)
    error, next_error = (rounded_error(*at, label, step) for at in ((behind, outputs), (rest, next_outputs)))
    return scales[0].T * error, scales[1].T * next_error


def rounded_error(behind: Behind, outputs: Tensor, label: int, step: float) -> Tensor:
    """Return the error (1, units) of an example with this label, and this for 1 - p_y."""
    slopes, rest, _ = _logit_slopes(behind, outputs)
    return rest[:, :, label] - step * slopes[:, :, label]


def _logit_slopes(behind: Behind, outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the logits' slopes (N, units, C), for each label what the others add to the error, and 1 - p_y.

    Of the likeliest label no 1 is ever subtracted: the others' chances may be far below the rounding of 1.
    """
    own, behind_slopes = behind.slopes(outputs)
    slopes = own[:, :, None] * behind_slopes
    chances = behind.logits(outputs).softmax(dim=1)
    best = chances.argmax(dim=1, keepdim=True)
    small = chances.scatter(1, best, 0.0)
    base = slopes @ small[:, :, None]
    largest = slopes @ (chances - small)[:, :, None]
    is_best = torch.zeros_like(chances).scatter(1, best, 1.0)[:, None] > 0
    rest = torch.where(is_best, base, base + largest - chances[:, None] * slopes)
    others = torch.where(is_best[:, 0], small.sum(dim=1, keepdim=True), 1 - chances)
    return slopes, rest, others
