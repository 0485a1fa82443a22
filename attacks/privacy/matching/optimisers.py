"""The searches: signed or plain Adam with a schedule, L-BFGS, Levenberg-Marquardt."""

import copy
import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import functional_call, grad, jvp, vjp, vmap
from torch.nn import functional

from attacks.privacy.matching.objectives import Euclidean
from attacks.privacy.matching.problem import Problem, Variables
from attacks.privacy.matching.watch import Watch
from fedsim.errors import FedsimError
from fedsim.types import Weights


class Optimiser:
    """A way to minimise a problem's objective."""

    iterations: int

    def minimise(self, problem: Problem, variables: Variables, watch: Watch) -> None:
        """Search from `variables`, showing every step to `watch`, which keeps the best."""
        raise NotImplementedError


class Adam(Optimiser):
    """Adam, optionally on the sign of the slopes, with a decaying step.

    Papers: Geiping et al. (NeurIPS 2020) for signs and steps; the soft sign is tanh, sharpened over time.
    """

    def __init__(
        self,
        *,
        iterations: int = 1500,
        step: float = 0.1,
        sign: str = "hard",
        decay: str = "steps",
        warmup: int = 0,
        box: bool = True,
    ) -> None:
        """Set the number of iterations, the first step, and how slopes and step are shaped.

        sign: `none`, `hard`, `soft`. decay: `none`, `steps` (a tenth at 3/8, 5/8, 7/8), `cosine`.
        box: keep pixels in [0, 1].
        """
        _one_of("sign", sign, ("none", "hard", "soft"))
        _one_of("decay", decay, ("none", "steps", "cosine"))
        self.iterations = _at_least_one("iterations", iterations)
        self.step = step
        self.sign = sign
        self.decay = decay
        self.warmup = warmup
        self.box = box

    def minimise(self, problem: Problem, variables: Variables, watch: Watch) -> None:
        """Walk down."""
        optimiser = torch.optim.Adam(variables, lr=self.step)
        for iteration in range(self.iterations):
            value, slopes = problem.value_and_slopes(variables)
            watch.see(value, variables)
            done = iteration / self.iterations
            if self.sign == "hard":
                slopes[0].sign_()  # of the images alone: label vectors have no box to stay in
            elif self.sign == "soft":
                slopes[0].mul_(1 - done).tanh_().div_(1 - done)
            for variable, slope in zip(variables, slopes, strict=True):
                variable.grad = slope
            optimiser.param_groups[0]["lr"] = self.step * self._factor(done, iteration)
            optimiser.step()
            if self.box:
                with torch.no_grad():
                    problem.parametrisation.keep_inside(variables[0])

    def _factor(self, done: float, iteration: int) -> float:
        factor = min(1.0, (iteration + 1) / (self.warmup + 1))
        if self.decay == "steps":
            factor *= 0.1 ** sum(done >= share for share in (3 / 8, 5 / 8, 7 / 8))
        elif self.decay == "cosine":
            factor *= (1 + math.cos(math.pi * done)) / 2
        return factor


class LBFGS(Optimiser):
    """L-BFGS with a strong Wolfe line search: few, good steps on smooth problems.

    Paper: Zhu et al., Deep Leakage from Gradients (NeurIPS 2019).
    """

    def __init__(self, *, iterations: int = 300, history: int = 50) -> None:
        """Set the number of evaluations of the objective, and how many steps the curvature remembers."""
        self.iterations = _at_least_one("iterations", iterations)
        self.history = history

    def minimise(self, problem: Problem, variables: Variables, watch: Watch) -> None:
        """Walk down."""
        optimiser = torch.optim.LBFGS(
            variables,
            max_iter=self.iterations,
            max_eval=self.iterations,
            history_size=self.history,
            tolerance_grad=1e-14,
            tolerance_change=1e-16,
            line_search_fn="strong_wolfe",
        )

        def evaluate() -> float:
            value, slopes = problem.value_and_slopes(variables)
            watch.see(value, variables)
            for variable, slope in zip(variables, slopes, strict=True):
                variable.grad = slope
            return value

        optimiser.step(evaluate)  # type: ignore[no-untyped-call]


class LevenbergMarquardt(Optimiser):
    """Gauss-Newton with damping on the difference of gradients: exact for smooth models with few unknowns.

    Up to `dense` unknowns the Jacobian is built by forward mode, `chunk` columns at a time, in float32 (it
    only shapes the step; the residual stays in float64). Beyond, conjugate gradients use products alone.
    """

    def __init__(
        self,
        *,
        iterations: int = 12,
        damping: float = 0.01,
        dense: int = 4096,
        chunk: int = 128,
        products: int = 200,
    ) -> None:
        """Set the number of steps, the first damping, and limits: of the dense form, of products a step."""
        self.iterations = _at_least_one("iterations", iterations)
        self.damping = damping
        self.dense = dense
        self.chunk = chunk
        self.products = products

    def minimise(self, problem: Problem, variables: Variables, watch: Watch) -> None:
        """Take damped Gauss-Newton steps until the residual stops falling."""
        if problem.labels is None or problem.candidates > 1:
            raise FedsimError(
                "attack.optimiser: Levenberg-Marquardt needs fixed labels and one candidate. "
                "Remedy: a label attack in attack.labels, attack.candidates=1."
            )
        exact = residuals(problem, torch.float64)
        rough = residuals(problem, torch.float32)
        point = variables[0].detach().double()
        gap = exact(point.flatten())
        value, damping = float(gap.dot(gap)), self.damping
        watch.see(value, [point])
        for _ in range(self.iterations):
            solve = self._solver(rough, exact, point, gap)
            while True:
                moved = point - solve(damping).view_as(point)
                moved_gap = exact(moved.flatten())
                moved_value = float(moved_gap.dot(moved_gap))
                if moved_value < value or damping > 1e8:
                    break
                damping *= 4
            if not moved_value < value:
                return
            fallen = moved_value / value
            point, gap, value = moved, moved_gap, moved_value
            damping = max(damping / 5, 1e-14)
            watch.see(value, [point])
            if fallen > 1 - 1e-6:
                return

    def _solver(
        self, rough: "Residuals", exact: "Residuals", point: Tensor, gap: Tensor
    ) -> Callable[[float], Tensor]:
        """Return the damped step as a function of the damping."""
        flat = point.flatten()
        if flat.numel() <= self.dense:
            start = flat.float()
            units = torch.eye(len(flat), dtype=torch.float32, device=flat.device)
            push = vmap(lambda unit: jvp(rough, (start,), (unit,))[1])
            jacobian = torch.cat(
                [push(some) for some in torch.split(units, self.chunk)]
            )  # transposed: (n, rows)
            square = (jacobian @ jacobian.T).double()
            slope = (jacobian @ gap.float()).double()
            size = square.diagonal().mean()
            identity = torch.eye(len(flat), dtype=torch.float64, device=flat.device)
            return lambda damping: torch.linalg.solve(square + damping * size * identity, slope)
        pull = vjp(exact, flat)[1]
        slope = pull(gap)[0]

        def square_times(direction: Tensor) -> Tensor:
            product: Tensor = pull(jvp(exact, (flat,), (direction,))[1])[0]
            return product

        probe = torch.sign(torch.randn(len(flat), generator=torch.Generator().manual_seed(0))).to(flat)
        size = probe.dot(square_times(probe)) / len(flat)  # estimates the mean of the diagonal
        return lambda damping: conjugate_gradients(
            lambda v: square_times(v) + damping * size * v, slope, self.products
        )


Residuals = Callable[[Tensor], Tensor]


def residuals(problem: Problem, dtype: torch.dtype) -> Residuals:
    """Return the layer-scaled difference of gradients as a function of the flat point, for forward mode."""
    model = copy.deepcopy(problem.model).to(dtype)
    shape = copy.deepcopy(problem.parametrisation).to(dtype)
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    target = [tensor.to(dtype) for tensor in problem.target]
    scales = Euclidean(weighting="layer").scales(target)
    labels = problem.labels
    assert labels is not None

    def loss(now: dict[str, Tensor], pixels: Tensor, theirs: Tensor) -> Tensor:
        return functional.cross_entropy(functional_call(model, now, (pixels,)), theirs)

    def slopes(now: Weights, pixels: Tensor, theirs: Tensor) -> list[Tensor]:
        return list(grad(loss)(dict(now), pixels, theirs).values())

    def difference(flat: Tensor) -> Tensor:
        images = shape.images(flat.view(problem.size, -1))
        guess = problem.select(problem.reply(shape.pixels(images), labels, weights, slopes))
        parts = zip(guess, target, scales, strict=True)
        return torch.cat([((mine - theirs) * scale).flatten() for mine, theirs, scale in parts])

    return difference


def conjugate_gradients(product: Callable[[Tensor], Tensor], wanted: Tensor, most: int) -> Tensor:
    """Solve a positive definite system by products alone, to 1e-6 of the right side or `most` products."""
    solution, left = torch.zeros_like(wanted), wanted.clone()
    direction, size = left.clone(), left.dot(left)
    enough = 1e-12 * size
    for _ in range(most):
        if size <= enough:
            break
        image = product(direction)
        length = size / direction.dot(image)
        solution += length * direction
        left -= length * image
        smaller = left.dot(left)
        direction = left + (smaller / size) * direction
        size = smaller
    return solution


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise FedsimError(f"attack.optimiser.{name}: expected one of {', '.join(allowed)}, got {value!r}")


def _at_least_one(name: str, value: int) -> int:
    if not isinstance(value, int) or value < 1:
        raise FedsimError(f"attack.optimiser.{name}: expected a whole number of at least 1, got {value!r}")
    return value
