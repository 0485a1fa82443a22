"""Images from moments of the output layer's gradient: the provable attack, as published.

What leaks: the images of the batch, or the features that enter the last two linear layers; up to an error of
    about 6 sqrt(inputs / units).
Paper: Wang, Lee and Lei, Reconstructing Training Data from Model Gradient, Provably (AISTATS 2023).
Assumes: the server chose the weights of both layers; the number of examples is known; the examples are
    linearly independent; the activation's moments do not vanish (computed by quadrature).
Fails: gently with few units: images need millions of them. attack=stein_exact needs hundreds.

g_j = dL/da_j = sum_i l_i act(w_j.x_i + b), so mean_j g_j He_p(w_j) tends to sum_i l_i k_p x_i^(tensor p).
Second moments give the span of the batch, third or fourth ones inside the span decompose into its examples.
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedsim.attacks.privacy import claims
from fedsim.attacks.privacy.least_squares import fit
from fedsim.attacks.privacy.stein.decomposition import decompose, powers
from fedsim.attacks.privacy.stein.head import (
    Form,
    Head,
    class_levels,
    craft_head,
    denormalised,
    find_head,
    input_norm,
    read_head,
)
from fedsim.attacks.privacy.stein.moments import (
    Units,
    first_moment,
    leading_subspace,
    moment_noise,
    projected,
    second_times,
    third_times,
    third_unfolded,
)
from fedsim.attacks.privacy.stein.quadrature import Activation, best_bias, coefficient, usable_orders
from fedsim.core import settings
from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Attack
from fedsim.core.randomness import generator
from fedsim.core.types import Observation, Reconstruction, Task, Weights

CHUNK = 2**24  # entries of the weights that are looked at in one go
NORMS = torch.linspace(0.05, 4, 400, dtype=torch.float64)  # of inputs, in units of the expected one
SPREAD = 0.3  # of the logarithm of lengths, as far as it is known beforehand
REFINEMENTS = 3  # of a span that comes from third moments


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Which moments give the span, and which are decomposed."""

    span: int
    decomposed: int
    usable: tuple[int, ...]


class Stein(Attack):
    """Tensor decomposition of Hermite moments of the output layer's gradient: the provable attack."""

    def __init__(
        self,
        *,
        order: int | None = None,
        bias: float | None = None,
        passes: int = 8,
        iterations: int = 150,
        seed: int = 0,
    ) -> None:
        """Set the order of the tensor (3 or 4) and the hidden units' bias; None: chosen by quadrature.

        passes: over the units, of the subspace iteration. iterations: of alternating least squares.
        """
        self.order = settings.optional(settings.one_of, "attack.order", order, (3, 4))
        self.bias = settings.optional(settings.number, "attack.bias", bias)
        self.passes = settings.whole("attack.passes", passes)
        self.iterations = settings.whole("attack.iterations", iterations, 0)
        self.seed = seed

    def craft(self, model: nn.Module, task: Task, round: int, weights: Weights) -> Weights:
        """Send Gaussian units with one bias, and output weights that are alike for all units."""
        form = find_head(model, task)
        bias = best_bias(form.act, (2, 3)) if self.bias is None else self.bias
        plan(form.act, bias, self.order)
        norm, random = input_norm(model, task, form, weights), generator(self.seed, "stein", round)
        return craft_head(form, weights, norm=norm, scale=1.0, bias=bias, random=random)

    def check(self, model: nn.Module, task: Task) -> None:
        """Refuse a model without a hidden linear layer that the images enter."""
        find_head(model, task)

    def run(self, model: nn.Module, task: Task, observations: Sequence[Observation]) -> Reconstruction:
        """Estimate the inputs of the hidden layer."""
        started, observation = time.perf_counter(), observations[-1]
        form = find_head(model, task)
        head = read_head(form, observation)
        if observation.num_examples is None:
            raise FedsimError(
                "the clients do not disclose their batch size. "
                "Remedy: add num_examples to federation.disclose, or attack=stein_exact."
            )
        if observation.num_examples > head.weight.shape[1]:
            raise FedsimError(
                f"{observation.num_examples} examples of {head.weight.shape[1]} inputs each are not linearly "
                "independent. Remedy: smaller batches."
            )
        if len(head.weight) < 4 * observation.num_examples:
            raise FedsimError(
                f"expected at least {4 * observation.num_examples} hidden units for "
                f"{observation.num_examples} examples, got {len(head.weight)}. Remedy: a larger model.width."
            )
        norm = 1 / float(head.weight.square().mean().sqrt())
        found = estimate(
            _units(head, norm, observation.num_examples),
            form.act,
            head.bias,
            inputs=head.weight.shape[1],
            size=observation.num_examples,
            order=self.order,
            passes=self.passes,
            iterations=self.iterations,
            random=generator(self.seed, "stein moments", observation.round, observation.client),
        )
        inputs = upright(form, task, found, norm)
        return Reconstruction(
            images=denormalised(task, inputs) if form.takes_images else None,
            embeddings=None if form.takes_images else inputs.float(),
            embedding_layer=None if form.takes_images else form.hidden,
            residual=found.residual,
            seconds=time.perf_counter() - started,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Estimate:
    """Inputs in units of the expected norm, and how well they explain the gradient."""

    inputs: Tensor  # (B, d)
    signed: bool  # False: each may be its negative
    residual: float


def plan(act: Activation, bias: float, order: int | None) -> Plan:
    """Choose the moments to use, or say why an activation cannot work."""
    usable = usable_orders(act, bias=bias)
    listed = ", ".join(map(str, usable)) or "none"
    if order is not None and order not in usable:
        raise FedsimError(
            f"moments of order {order} vanish for this activation with bias {bias:g}: "
            f"usable orders are {listed}. Remedy: attack.order=null, attack.bias=0.5."
        )
    chosen = order or next((order for order in (3, 4) if order in usable), None)
    if chosen is None:
        shown = "the span" if 2 in usable else "a linear combination" if usable else "nothing"
        raise FedsimError(
            f"moments of order 3 and 4 vanish for this activation with bias {bias:g} (usable: {listed}): "
            f"the gradient shows {shown} of the inputs, nothing more. "
            "Remedy: another model.activation, or attack.bias=0.5."
        )
    if 2 not in usable and not {1, 3} <= set(usable):
        raise FedsimError(
            f"no moment of this activation with bias {bias:g} shows the span of the inputs "
            f"(usable orders: {listed}). Remedy: attack.bias=0.5."
        )
    return Plan(span=2 if 2 in usable else 3, decomposed=chosen, usable=usable)


def estimate(
    units: Units,
    act: Activation,
    bias: float,
    *,
    inputs: int,
    size: int,
    order: int | None = None,
    passes: int = 8,
    iterations: int = 150,
    random: torch.Generator,
) -> Estimate:
    """Return the inputs whose moments are those of the units' gradients."""
    chosen = plan(act, bias, order)
    claims.expect_room(size ** (chosen.decomposed + 1), f"moments of {size} examples")
    if chosen.span == 2:
        basis = leading_subspace(lambda block: second_times(units, block), inputs, size, passes, random)
    else:
        along = first_moment(units)
        along = along / along.norm()
        basis = leading_subspace(lambda block: third_times(units, block, along), inputs, size, passes, random)
        for _ in range(REFINEMENTS):
            basis = torch.linalg.svd(third_unfolded(units, basis), full_matrices=False)[0][:, :size]
    tensors = projected(units, basis, chosen.decomposed)
    reference = tensors[1] if chosen.span == 2 else None
    directions = decompose(tensors[chosen.decomposed - 1], reference, iterations, random)
    lengths = sizes(tensors, directions, act, bias, chosen.usable, noise=moment_noise(units))
    found = (directions * lengths).T @ basis.T
    return Estimate(
        inputs=found,
        signed=any(order % 2 for order in chosen.usable) and any(not order % 2 for order in chosen.usable),
        residual=explained(units, found, act, bias),
    )


def sizes(
    tensors: list[Tensor],
    directions: Tensor,
    act: Activation,
    bias: float,
    usable: Sequence[int],
    *,
    noise: float,
) -> Tensor:
    """Return the signed length of every input, from its weights in all usable moments.

    In the moment of order p a unit direction weighs l h_p(length) sign^p, with h_p known by quadrature.
    """
    orders = [order for order in usable if order <= len(tensors)]
    weights = torch.stack(
        [
            fit(powers(directions, order), tensors[order - 1].reshape(-1, 1))[:, 0]
            / math.sqrt(math.factorial(order))
            for order in orders
        ]
    )  # (orders, B)
    lengths = torch.cat([NORMS, -NORMS])
    table = torch.stack([_table(act, bias, order) for order in orders])  # (orders, lengths)
    table = torch.cat([table, table * torch.tensor([[(-1.0) ** order] for order in orders])], dim=1)
    levels = (table.T @ weights) / table.square().sum(0)[:, None]  # (lengths, B), the best for each length
    gaps = (weights[:, None] - table[:, :, None] * levels).square().sum(0)
    # Where noise leaves the length open, or moments do (ReLU without bias): the expected one.
    gaps = gaps + noise * (lengths.abs().log() / SPREAD).square()[:, None]
    best = gaps.argmin(dim=0)
    return lengths[best]


def _table(act: Activation, bias: float, order: int) -> Tensor:
    """Return h_p / sqrt(p!) over all lengths."""
    values = [coefficient(act, order, bias=bias, scale=float(length)) for length in NORMS[::8]]
    knots = torch.tensor(values, dtype=torch.float64) / math.sqrt(math.factorial(order))
    place = torch.arange(len(NORMS), dtype=torch.float64) / 8
    left = place.floor().long().clamp(max=len(knots) - 2)
    return torch.lerp(knots[left], knots[left + 1], place - left)


def explained(units: Units, inputs: Tensor, act: Activation, bias: float) -> float:
    """Return the part of the gradients' deviation that these inputs do not explain, with the best levels."""
    size = len(inputs)
    square, product = torch.zeros(size, size, dtype=torch.float64), torch.zeros(size, dtype=torch.float64)
    total, level, count = 0.0, 0.0, 0
    for weights, gradients in units():
        values = act(weights @ inputs.T.to(weights) + bias).double()
        gradients = gradients.double()
        square += values.T @ values
        product += values.T @ gradients
        total += float(gradients.square().sum())
        level += float(gradients.sum())
        count += len(weights)
    levels = fit(square, product[:, None])[:, 0]
    left = total - 2 * float(levels @ product) + float(levels @ square @ levels)
    deviation = total - level**2 / count
    free = max(1, count - size) / count  # what so many levels would explain of anything
    return math.sqrt(max(0.0, left) / (free * deviation)) if deviation > 0 else 1.0


def upright(form: Form, task: Task, found: Estimate, norm: float) -> Tensor:
    """Return inputs in the model's units; where moments leave the sign open, pixels within range decide."""
    inputs = found.inputs * norm
    if found.signed or not form.takes_images:
        return inputs

    def outside(inputs: Tensor) -> Tensor:
        pixels = denormalised(task, inputs, clamp=False).flatten(1)
        return (pixels - pixels.clamp(0, 1)).square().sum(1)

    return torch.where((outside(inputs) <= outside(-inputs))[:, None], inputs, -inputs)


def _units(head: Head, norm: float, size: int) -> Units:
    """Return the units with N(0, I) weights, and one gradient for each: a mixture of the classes'."""
    rows = max(1, min(CHUNK // head.weight.shape[1], claims.MOST_NUMBERS // size**2))
    levels = class_levels(len(head.output_gradient)).to(head.output_gradient)

    def chunks() -> Iterator[tuple[Tensor, Tensor]]:
        for begin in range(0, len(head.weight), rows):
            part = slice(begin, begin + rows)
            yield head.weight[part] * norm, levels @ head.output_gradient[:, part]

    return chunks
