"""Which moments of a two-layer network show its inputs: Hermite coefficients of activations, by quadrature.

By Stein's lemma E[s(w.x + b) H_p(w)] = k_p x^(tensor p) for w ~ N(0, I), with k_p = E[s^(p)(w.x + b)].
Along x this is the Hermite coefficient of one variable, which needs no derivative: it holds for kinks too.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedsim.core.errors import FedsimError

Activation = Callable[[Tensor], Tensor]

POINTS = torch.linspace(-12, 12, 24_001, dtype=torch.float64)
DENSITY = torch.exp(-POINTS.square() / 2) / math.sqrt(2 * math.pi) * float(POINTS[1] - POINTS[0])
LEAST = 1e-3  # share of an activation's deviation below which a moment drowns
ORDERS = (1, 2, 3, 4)
BIASES = (
    0.5,
    1.0,
    -0.5,
    -1.0,
    0.25,
    1.5,
    0.0,
)  # to choose from; the first wins unless another is clearly better


def hermite(order: int, values: Tensor) -> Tensor:
    """Return the probabilists' Hermite polynomial: 1, z, z^2 - 1, z^3 - 3 z, ..."""
    before, now = torch.zeros_like(values), torch.ones_like(values)
    for degree in range(order):
        before, now = now, values * now - degree * before
    return now


def coefficient(act: Activation, order: int, *, bias: float, scale: float = 1.0) -> float:
    """Return E[act(scale z + bias) He_order(z)] for a standard normal z: k_p scale^p."""
    return float((DENSITY * _at(act, bias, scale) * hermite(order, POINTS)).sum())


def strength(act: Activation, order: int, *, bias: float, scale: float = 1.0) -> float:
    """Return the share of an activation's deviation that one order carries: squares add up to 1."""
    values = _at(act, bias, scale)
    mean = (DENSITY * values).sum()
    variance = float((DENSITY * (values - mean).square()).sum())
    if variance == 0:
        return 0.0
    size = coefficient(act, order, bias=bias, scale=scale)
    return abs(size) / math.sqrt(math.factorial(order) * variance)


def usable_orders(act: Activation, *, bias: float, scale: float = 1.0) -> tuple[int, ...]:
    """Return the orders from 1 to 4 whose moment is not zero."""
    return tuple(order for order in ORDERS if strength(act, order, bias=bias, scale=scale) > LEAST)


def best_bias(act: Activation, orders: Sequence[int], *, scale: float = 1.0) -> float:
    """Return the bias at which the weakest of these orders is strongest."""

    def weakest(bias: float) -> float:
        return min(strength(act, order, bias=bias, scale=scale) for order in orders)

    first = weakest(BIASES[0])
    best = max(BIASES, key=weakest)
    return best if weakest(best) > 1.5 * first else BIASES[0]


def slopes(act: Activation, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first and the second derivative of an activation, entry by entry."""
    with torch.enable_grad():
        values = values.detach().requires_grad_(True)
        total = act(values).sum()
        (first,) = torch.autograd.grad(total, values, create_graph=True)
        if not first.requires_grad:
            return first.detach(), torch.zeros_like(values)
        (second,) = torch.autograd.grad(first.sum(), values, materialize_grads=True)
    return first.detach(), second


def slope_levels(act: Activation) -> tuple[float, float] | None:
    """Return the slopes below and above zero of an activation with its kink there; None when it is smooth."""
    values = torch.arange(-19.95, 20, 0.1, dtype=torch.float64)[None]
    first, second = slopes(act, values)
    if bool(second.any()):
        return None
    low, high = first[values < 0], first[values > 0]
    if bool((low != low[0]).any()) or bool((high != high[0]).any()):
        raise FedsimError(
            "an activation of straight pieces with kinks elsewhere than at zero cannot be read. "
            "Remedy: relu, leaky_relu, or a smooth model.activation."
        )
    return float(low[0]), float(high[0])


def _at(act: Activation, bias: float, scale: float) -> Tensor:
    return act((scale * POINTS + bias)[None])[0]
