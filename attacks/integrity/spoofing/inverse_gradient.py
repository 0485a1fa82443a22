"""A trace made backwards: from chosen weights, step by step, to where they could have come from.

What it gains: valid steps that end in any weights; but they begin anywhere, and cost more than training.
Paper: Jia et al., Proof-of-Learning (S&P 2021), section VII-B: solve W_{t-1} - W_t - eta grad L(W_{t-1}) = 0.
Assumes: the verifier does not look where the trace begins.
Caught by: the first checkpoint: it is not what was sent, and no random initialisation.
"""

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import NoConvergence, broyden1, newton_krylov
from torch import Tensor, nn

from fedsim.attacks.integrity.spoofing.fabricate import claimed, shifted
from fedsim.core.interfaces import Behaviour
from fedsim.core.settings import number, one_of, whole
from fedsim.core.training import Batch, Claim, LocalWork, batch_gradient, load_weights
from fedsim.core.types import Weights

SOLVERS = ("picard", "newton_krylov", "broyden", "gradient_descent")


class InverseGradient(Behaviour):
    """Goes back from chosen weights by solving for each step's start."""

    def __init__(self, *, solver: str = "picard", iterations: int = 15, away: float = 0.3) -> None:
        """Set the solver, its iterations a step, and how far the weights lie (of each tensor's length)."""
        self.solver = one_of("client.inverse_gradient.solver", solver, SOLVERS)
        self.iterations = whole("client.inverse_gradient.iterations", iterations)
        self.away = number("client.inverse_gradient.away", away, above=0)

    def train(self, work: LocalWork) -> Claim:
        """Make up a past for the chosen weights."""
        batches, way = work.own_batches(), [shifted(work, work.sent, self.away)]
        for batch in reversed(batches):
            found = invert_step(
                work.model, way[0], batch, work.learning_rate, solver=self.solver, iterations=self.iterations
            )
            way.insert(0, dict(found.weights))
        return claimed(work, way, batches)


@dataclass(frozen=True, kw_only=True, eq=False)
class Inverted:
    """Where a step may have begun."""

    weights: Weights
    calls: int  # gradients that it took
    error: float  # l2 distance of where the step leads from where it should
    errors: tuple[float, ...]  # the largest entry of that, after each gradient


def invert_step(
    model: nn.Module,
    after: Weights,
    batch: Batch,
    learning_rate: float,
    *,
    solver: str = "picard",
    iterations: int = 15,
    tolerance: float = 1e-7,
) -> Inverted:
    """Find weights from which a step on this batch leads to `after`."""
    own = copy.deepcopy(model).double()  # finite differences of float32 gradients are noise
    images, goal = batch.images.double(), _flat(after).double()
    errors, last = list[float](), float("inf")

    def residual(point: Tensor) -> Tensor:
        nonlocal last
        load_weights(own, _shaped(point, after))
        gradient, _ = batch_gradient(own, images, batch.labels)
        gap = point - learning_rate * _flat(gradient) - goal
        last = float(gap.norm())
        errors.append(float(gap.abs().max()))
        return gap

    solve = {
        "picard": _picard,
        "newton_krylov": _newton_krylov,
        "broyden": _broyden,
        "gradient_descent": _gradient_descent,
    }[solver]
    point = solve(residual, goal, iterations, tolerance)
    weights = {name: tensor.float() for name, tensor in _shaped(point, after).items()}
    return Inverted(weights=weights, calls=len(errors), error=last, errors=tuple(errors))


def _picard(residual: Callable[[Tensor], Tensor], start: Tensor, iterations: int, tolerance: float) -> Tensor:
    """Iterate W <- W' + eta grad L(W): a contraction while eta times the curvature is below one."""
    point, best, least = start, start, float("inf")
    for _ in range(iterations):
        gap = residual(point)
        if not (size := float(gap.norm())) < least:
            break  # it diverges
        point, best, least = point - gap, point, size
        if size <= tolerance:
            break
    return best


def _gradient_descent(
    residual: Callable[[Tensor], Tensor], start: Tensor, iterations: int, tolerance: float
) -> Tensor:
    """Go down the squared residual; its slope is J r, by a difference of two residuals along r."""
    point = start
    for _ in range(iterations):
        gap = residual(point)
        if (size := float(gap.norm())) <= tolerance:
            break
        small = 1e-4 / size
        point = point - (residual(point + small * gap) - gap) / small
    return point


def _newton_krylov(
    residual: Callable[[Tensor], Tensor], start: Tensor, iterations: int, tolerance: float
) -> Tensor:
    solve = functools.partial(newton_krylov, maxiter=iterations, inner_maxiter=10, f_tol=tolerance)
    return _by_scipy(solve, residual, start)


def _broyden(
    residual: Callable[[Tensor], Tensor], start: Tensor, iterations: int, tolerance: float
) -> Tensor:
    solve = functools.partial(broyden1, alpha=-1.0, maxiter=iterations, f_tol=tolerance)
    return _by_scipy(solve, residual, start)


def _by_scipy(solve: Callable[..., object], residual: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    try:
        found = solve(lambda point: residual(torch.from_numpy(point)).numpy(), start.numpy())
    except NoConvergence as stopped:
        found = stopped.args[0]
    return torch.from_numpy(np.asarray(found))


def _flat(weights: Weights) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in weights.values()])


def _shaped(point: Tensor, like: Weights) -> dict[str, Tensor]:
    parts = torch.split(point, [tensor.numel() for tensor in like.values()])
    return {name: part.view_as(like[name]).clone() for name, part in zip(like, parts, strict=True)}
