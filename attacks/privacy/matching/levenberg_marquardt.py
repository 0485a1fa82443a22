"""Levenberg-Marquardt on the difference of gradients: matching as the least-squares problem that it is."""

import copy
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.func import functional_call, grad, jvp, vjp, vmap
from torch.nn import functional

from fedsim.attacks.privacy import claims
from fedsim.attacks.privacy.matching.objectives import Euclidean, Objective
from fedsim.attacks.privacy.matching.optimisers import Optimiser
from fedsim.attacks.privacy.matching.priors import Prior
from fedsim.attacks.privacy.matching.problem import Problem, Variables
from fedsim.attacks.privacy.matching.watch import Watch
from fedsim.core.errors import FedsimError
from fedsim.core.settings import number, whole
from fedsim.core.types import Weights


class LevenbergMarquardt(Optimiser):
    """Gauss-Newton with damping on the difference of gradients: exact for smooth models with few unknowns.

    Up to `dense` unknowns the Jacobian is built by forward mode, `chunk` columns at a time, in float32 while
    the residual is large: it only shapes the step. Beyond, conjugate gradients use products alone.
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
        self.iterations = whole("attack.optimiser.iterations", iterations)
        self.damping = number("attack.optimiser.damping", damping, above=0)
        self.dense = whole("attack.optimiser.dense", dense, 0)
        self.chunk = whole("attack.optimiser.chunk", chunk)
        self.products = whole("attack.optimiser.products", products)

    def check(self, objective: Objective, priors: Sequence[Prior], *, terms: bool = False) -> None:
        """Complain about parts that this search cannot take into account; terms: other than priors."""
        if priors or terms or not isinstance(objective, Euclidean) or objective.weighting != "layer":
            raise FedsimError(
                "attack.optimiser: Levenberg-Marquardt minimises the layer-weighted squared error alone. "
                "Remedy: attack.objective Euclidean with weighting=layer, attack.priors=[], "
                "attack.features=null."
            )

    def minimise(self, problem: Problem, variables: Variables, watch: Watch) -> None:
        """Take damped Gauss-Newton steps until the residual stops falling."""
        if problem.labels is None or problem.candidates > 1:
            raise FedsimError(
                "attack.optimiser: Levenberg-Marquardt needs fixed labels and one candidate. "
                "Remedy: a label attack in attack.labels, attack.candidates=1."
            )
        point = variables[0].detach().double()
        exact = residuals(problem, torch.float64, point.shape)
        rough = residuals(problem, torch.float32, point.shape)
        gap = exact(point.flatten())
        value, damping = float(gap.dot(gap)), self.damping
        watch.see(value, [point])
        for _ in range(self.iterations):
            if value == 0:
                return
            damping = max(min(damping, value), 1e-14)  # near the solution, steps are nearly undamped
            if value > 1e-6:
                solve = self._solver(rough, torch.float32, point, gap, watch)
            else:
                solve = self._solver(exact, torch.float64, point, gap, watch)
            moved, moved_gap, moved_value = point, gap, value
            while not moved_value < value and damping < 1e8:
                watch.check_time()
                try:
                    moved = point - solve(damping).view_as(point)
                except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # singular: more damping
                    moved_value = math.inf
                else:
                    moved_gap = exact(moved.flatten())
                    moved_value = float(moved_gap.dot(moved_gap))
                damping *= 4
            if not moved_value < value:
                return
            fallen = moved_value / value
            point, gap, value = moved, moved_gap, moved_value
            damping = damping / 20
            watch.see(value, [point])
            if fallen > 1 - 1e-6 or (value < 1e-12 and fallen > 0.3):  # the noise of float32 gradients
                return

    def _solver(
        self, residual: "Residuals", dtype: torch.dtype, point: Tensor, gap: Tensor, watch: Watch
    ) -> Callable[[float], Tensor]:
        """Return the damped step as a function of the damping."""
        flat, gap = point.flatten().to(dtype), gap.to(dtype)
        columns_twice = 2 * len(flat) * len(gap) * flat.element_size()
        if len(flat) <= self.dense and columns_twice <= claims.memory(flat.device):
            units = torch.eye(len(flat), dtype=dtype, device=flat.device)
            push = vmap(lambda unit: jvp(residual, (flat,), (unit,))[1])
            columns = list[Tensor]()
            for some in torch.split(units, self.chunk):
                watch.check_time()
                columns.append(push(some))
            transposed = torch.cat(columns)  # (n, rows)
            square, slope = (transposed @ transposed.T).double(), (transposed @ gap).double()
            ridge = square.diagonal().mean() * units.double()
            return lambda damping: torch.linalg.solve(square + damping * ridge, slope)
        pull = vjp(residual, flat)[1]

        def square_times(direction: Tensor) -> Tensor:
            watch.check_time()
            product: Tensor = pull(jvp(residual, (flat,), (direction,))[1])[0]
            return product

        probe = torch.sign(torch.randn(len(flat), generator=torch.Generator().manual_seed(0))).to(flat)
        size = probe.dot(square_times(probe)) / len(flat)  # estimates the mean of the diagonal
        right = pull(gap)[0]
        return lambda damping: conjugate_gradients(
            lambda v: square_times(v) + damping * size * v, right, self.products
        ).double()


Residuals = Callable[[Tensor], Tensor]


def residuals(problem: Problem, dtype: torch.dtype, form: torch.Size) -> Residuals:
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
        images = shape.images(flat.view(form))
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
