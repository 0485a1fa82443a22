"""A gradient is solved for images from another start: where it does not tell them, others are found.

What it gains: real pixels in [0, 1] for convolutional networks too, with an update that is equal to rounding.
Paper: none; Levenberg-Marquardt on the difference of gradients as in gradient inversion, with bounds. Suliman
    et al., Towards a Re-evaluation of Data Forging Attacks in Practice (2024), have exact forgeries for
    fully connected networks alone.
Assumes: a smooth network (sigmoid, tanh, GELU) and more pixels in the batch than the gradient tells apart.
Caught by: asking for whole grey levels: rounded to them, the update is far away.
"""

import copy
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.func import functional_call, grad, jvp, vmap
from torch.nn import functional

from fedsim.attacks.integrity.forging.replacement import expect_examples, targets
from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Challenge, Forgery
from fedsim.core.settings import number, whole
from fedsim.core.training import Batch

Residual = Callable[[Tensor], Tensor]
DENSE = 7000  # unknowns of the normal equations
CHUNK = 64  # columns of the Jacobian at a time
ROUGH = 1e-6  # squared residuals above: the Jacobian in float32
ROUNDS = 20  # of stopping pixels, in a step
SMALL = 1e-30  # of the squared residual: rounding in float64


class GaussNewton(Forgery):
    """Starts at other images of the same classes and solves for the gradient within the bounds of pixels."""

    pixels = "box"

    def __init__(self, *, iterations: int = 30, damping: float = 0.01) -> None:
        """Set the number of steps and the first damping."""
        self.iterations = whole("forgery.iterations", iterations)
        self.damping = number("forgery.damping", damping, above=0)

    def forge(self, challenge: Challenge) -> Batch:
        """Replace the unwanted images by ones that restore the gradient; the others stay."""
        expect_examples(challenge)
        challenge = replace(challenge, unwanted=targets(challenge))
        batch, places = challenge.batch, challenge.unwanted
        unknowns = batch.images[places].numel()
        if unknowns > DENSE:
            raise FedsimError(
                f"forgery=[gauss_newton]: expected at most {DENSE} pixels to solve for, got {unknowns}. "
                "Remedy: fewer unwanted examples (forge.fractions) or a smaller batch."
            )
        exact, rough = (_residuals(challenge, kind) for kind in (torch.float64, torch.float32))
        point = solve(exact, rough, self._start(challenge).flatten(), self.iterations, self.damping)
        images = batch.images.clone()
        images[places] = point.view_as(images[places]).to(images.dtype)
        return Batch(images=images, labels=batch.labels)

    def _start(self, challenge: Challenge) -> Tensor:
        """Return other images, of the same classes where there are some."""
        others = challenge.examples(challenge.owned[:2000])
        left, chosen = others.labels.tolist(), list[int]()
        for label in challenge.batch.labels[challenge.unwanted].tolist():
            place = left.index(label) if label in left else next(i for i, v in enumerate(left) if v >= 0)
            left[place] = -1
            chosen.append(place)
        return others.images[chosen].double().clamp(0.02, 0.98)  # off the bounds, where steps would stop


def _residuals(challenge: Challenge, dtype: torch.dtype) -> Residual:
    """Return the difference of gradients as a function of the unwanted images, relative for each tensor."""
    model = copy.deepcopy(challenge.model).to(dtype)
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    images, labels, places = challenge.batch.images.to(dtype), challenge.batch.labels, challenge.unwanted

    def slopes(pixels: Tensor) -> list[Tensor]:
        def loss(now: dict[str, Tensor]) -> Tensor:
            return functional.cross_entropy(functional_call(model, now, (pixels,)), labels)

        return list(grad(loss)(weights).values())

    target = slopes(images)
    scales = [1 / max(float(tensor.norm()), 1e-12) for tensor in target]

    def difference(point: Tensor) -> Tensor:
        guess = slopes(images.index_put((places,), point.view(len(places), *images.shape[1:])))
        parts = zip(guess, target, scales, strict=True)
        return torch.cat([((mine - theirs) * scale).flatten() for mine, theirs, scale in parts])

    return difference


def solve(residual: Residual, rough: Residual, point: Tensor, iterations: int, damping: float) -> Tensor:
    """Return where the residual is smallest in [0, 1]: damped Gauss-Newton within bounds.

    rough: the same in float32, for the Jacobian while the residual is large: it only shapes the step.
    """
    gap = residual(point)
    value = float(gap.dot(gap))
    for _ in range(iterations):
        columns = _jacobian(*((rough, point.float()) if value > ROUGH else (residual, point)))
        slope, square = (columns @ gap.to(columns)).double(), (columns @ columns.T).double()
        moved_value = float("inf")
        while not moved_value < value and damping < 1e8:
            moved = (point + _bounded_step(square, slope, damping, point)).clamp(0, 1)
            moved_gap = residual(moved)
            moved_value = float(moved_gap.dot(moved_gap))
            damping *= 4
        if not moved_value < value:
            break
        point, gap, value = moved, moved_gap, moved_value
        damping = max(min(damping / 20, value), 1e-14)
        if value < SMALL:
            break
    return point


def _bounded_step(square: Tensor, slope: Tensor, damping: float, point: Tensor) -> Tensor:
    """Return the damped step; pixels that would leave [0, 1] stop at its edge; others make up for it."""
    step, free = torch.zeros_like(point), torch.ones(len(point), dtype=torch.bool)
    ridge = damping * square.diagonal().mean()
    for _ in range(ROUNDS):
        inner = square[free][:, free] + ridge * torch.eye(int(free.sum()), dtype=point.dtype)
        step[free] = -torch.linalg.solve(inner, slope[free] + square[free][:, ~free] @ step[~free])
        there = point + step
        out = free & ((there < 0) | (there > 1))
        if not bool(out.any()):
            break
        step[out] = there[out].clamp(0, 1) - point[out]
        free &= ~out
    return step


def _jacobian(residual: Residual, point: Tensor) -> Tensor:
    """Return the derivatives of the residual, a row for each pixel."""
    push = vmap(lambda unit: jvp(residual, (point,), (unit,))[1])
    units = torch.eye(len(point), dtype=point.dtype)
    return torch.cat([push(some) for some in torch.split(units, CHUNK)])
