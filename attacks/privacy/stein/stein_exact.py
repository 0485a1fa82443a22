"""Whole batches to float precision from the last two linear layers: the exact form of the Stein attack.

What leaks: the images of the batch and their labels, or the features that enter the two layers.
Paper: none; Wang, Lee and Lei (AISTATS 2023) estimate moments of the output layer's gradient alone. Here the
    hidden layer's gradient gives the span of the inputs and the column that each of them leaves in it.
Assumes: the server chose the weights of both layers; the client sends the gradient of one step.
Fails: with fewer units than about four for each example, more examples than inputs, linear and quadratic
    activations, and gradients that were clipped before noise was added.

With W, b and A as in head.py the hidden gradient is G = S diag(lambda) X, S_ji = act'(w_j.x_i + b):
1. its row space is the span V of the batch: only B coordinates of each input are unknown;
2. regression of G V on Hermite polynomials of V^T w gives second and third moments, whose decomposition
   gives starts (Stein's lemma, inside the span);
3. each start is refined on its own until its column lies in the column space of G (membership.py);
4. what was found is projected out of moments and gradient, and the search goes on for the rest.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attacks.privacy.matching import checks
from attacks.privacy.stein.completion import complete
from attacks.privacy.stein.decomposition import coefficients, diagonalise
from attacks.privacy.stein.head import Form, Head, craft_head, denormalised, find_head, input_norm, read_head
from attacks.privacy.stein.membership import Columns
from attacks.privacy.stein.quadrature import best_bias, coefficient, slope_levels, strength, usable_orders
from fedsim import progress
from fedsim.errors import FedsimError, in_words
from fedsim.interfaces import Attack
from fedsim.randomness import generator
from fedsim.types import Interrupted, Observation, Reconstruction, Task, Weights

log = logging.getLogger(__name__)
EXACT = 1e-4  # relative residual of a column that passes for an input's, where gradients are exact
ROUNDING = 3e-7  # of float32 gradients: smaller singular values are nothing
LOOSEST = 0.3  # of noisy ones: a wrong column has about 0.5
CLEAR_GAP = 30.0  # between singular values of examples and those of noise
UNITS = 6  # for each example: so many take part in the search, all in the last steps
KNOWN = 3  # entries for each example that a unit's gradient must have kept
STEPS = 20  # of refinement, from each start
PATIENCE = 6  # rounds without a new input
LARGEST = 16_000  # Hermite features whose regression is affordable
RIDGE = 0.01  # of the regression, for each unit


class SteinExact(Attack):
    """Exact batches from crafted last layers: span, moments for starts, then input by input."""

    def __init__(
        self,
        *,
        scale: float = 0.5,
        bias: float | None = None,
        labels: Attack | None = None,
        starts: int = 32,
        seconds: float | None = None,
        seed: int = 0,
    ) -> None:
        """Set the deviation of w.x for an input of expected size, and the bias (None: chosen by quadrature).

        labels: a label attack that says how many examples there are, where neither clients nor singular
        values do. starts: random ones of a round, after the moments' own. seconds: time budget of a batch.
        """
        self.scale = checks.number("scale", scale)
        self.bias = bias
        self.labels = labels
        self.starts = checks.whole("starts", starts)
        self.seconds = checks.seconds("seconds", seconds)
        self.seed = seed

    def craft(self, model: nn.Module, task: Task, round: int, weights: Weights) -> Weights:
        """Send Gaussian units with one bias, and output weights that are alike for all units."""
        form = find_head(model, task)
        bias = self.bias
        if bias is None and slope_levels(form.act) is not None:
            bias = self.scale / 2  # two thirds of the units active: columns round best
        elif bias is None:
            bias = best_bias(form.act, (2, 3), scale=self.scale)
        self._check(form, bias)
        norm, random = input_norm(model, task, form, weights), generator(self.seed, "stein", round)
        return craft_head(form, weights, norm=norm, scale=self.scale, bias=bias, random=random)

    def run(self, model: nn.Module, task: Task, observations: Sequence[Observation]) -> Reconstruction:
        """Recover the inputs of the hidden layer, and their labels."""
        started, observation = time.perf_counter(), observations[-1]
        form = find_head(model, task)
        head = read_head(form, observation)
        self._check(form, head.bias)
        size = observation.num_examples or self._examples(model, task, observations, head)
        batch = Batch.of(head, form, size, self.scale)
        interrupted = False
        try:
            self._search(batch, generator(self.seed, "stein search", observation.round), started)
        except KeyboardInterrupt:
            interrupted = True
        if not len(batch.columns):
            if interrupted:
                raise KeyboardInterrupt
            raise FedsimError(
                f"none of the {size} inputs of layer {form.hidden!r} was found, from {len(head.weight)} "
                f"units. Remedy: model.width of at least {UNITS * size + size**2 // 2}, or smaller batches."
            )
        guess = _reconstruction(task, form, head, batch, size, time.perf_counter() - started)
        if interrupted:
            raise Interrupted(guess)
        return guess

    def _check(self, form: Form, bias: float) -> None:
        """Refuse an activation that shows no more than combinations of inputs."""
        levels = slope_levels(form.act)
        if levels is not None and levels[0] == levels[1]:
            raise FedsimError(
                "a linear activation: the gradient holds one linear combination of the inputs, nothing else. "
                "Remedy: another model.activation."
            )
        if all(strength(form.act, order, bias=bias, scale=self.scale) < 1e-6 for order in (3, 4, 5, 6)):
            raise FedsimError(
                "a quadratic activation: the gradient shows the span of the inputs, not the inputs. "
                "Remedy: another model.activation."
            )

    def _examples(self, model: nn.Module, task: Task, observations: Sequence[Observation], head: Head) -> int:
        """Return the number of examples: singular values show it, or the labels' attack."""
        values = torch.linalg.svdvals(head.weight_gradient.double())
        gaps = values[:-1] / values[1:].clamp(min=max(float(values[0]) * ROUNDING, 1e-300))
        if float(gaps.max()) > CLEAR_GAP:
            return int(gaps.argmax()) + 1
        if self.labels is not None:
            try:
                counts = self.labels.run(model, task, observations).class_counts
            except FedsimError as error:
                log.warning("attack.labels: %s", in_words(error))
            else:
                if counts is not None and int(counts.sum()):
                    return int(counts.sum())
        raise FedsimError(
            "neither the client nor the gradient's singular values say how many examples there are. "
            "Remedy: add num_examples to federation.disclose, or a label attack in attack.labels."
        )

    def _search(self, batch: "Batch", random: torch.Generator, started: float) -> None:
        idle = 0
        with progress.bar("inputs", batch.size) as advance:
            while len(batch.columns) < batch.size and idle < PATIENCE:
                if time.perf_counter() > started + self.seconds:
                    break
                idle = 0 if batch.search(self.starts if batch.kinked or idle else 0, random) else idle + 1
                advance(len(batch.columns))
        batch.finish()


@dataclass(eq=False)
class Batch:
    """One batch in coordinates of its span, in units of the expected norm; and what was found of it."""

    size: int  # different inputs
    norm: float
    heard: Tensor  # (units,) bool: those that take part, m of them
    basis: Tensor  # (B, d) orthonormal: V
    gradient: Tensor  # (m, B): G V
    whole: Columns
    some: Columns  # fewer units, for the search
    second: Tensor  # (B, B) second moments
    third: Tensor  # (B, B, B)
    ratio: float  # of a start: third moments over second ones, to coordinates
    kinked: bool
    tolerance: float
    columns: Tensor  # (found, m): act'(w.x + b) of what was found
    points: Tensor  # (found, B): where it is; of a kinked activation only about

    @classmethod
    def of(cls, head: Head, form: Form, size: int, scale: float) -> "Batch":
        """Find the span of a batch and its moments."""
        gradient, units = head.weight_gradient.double(), head.weight.double()
        known = gradient != 0  # a sparsifying client's zeros are unknown
        heard = known.sum(1) >= min(
            KNOWN * size, gradient.shape[1]
        )  # of other units nothing can be completed
        if not bool(known.all()):
            gradient, units = complete(gradient, known, size)[heard], units[heard]
        tall = torch.linalg.qr(gradient)[1] if len(gradient) > gradient.shape[1] else gradient
        _, values, rows = torch.linalg.svd(tall, full_matrices=False)
        size = min(size, int((values > ROUNDING * values[0]).sum()))  # equal inputs are one
        if len(units) < 2 * size or size > units.shape[1]:
            raise FedsimError(
                f"layer {form.hidden!r} has {len(units)} units and {units.shape[1]} inputs: expected at "
                f"least {2 * size} and {size} for {size} examples. Remedy: model.width, or smaller batches."
            )
        basis = rows[:size]
        norm = scale / float(units.square().mean().sqrt())  # as it was crafted
        inside, units = gradient @ basis.T, units @ basis.T * (norm / scale)
        noise = float(values[size] / values[size - 1]) if len(values) > size else 0.0
        few = min(len(units), max(UNITS * size, 64))
        act = form.act

        def scaled(values: Tensor) -> Tensor:
            return act(scale * values)

        bias = head.bias / scale
        second, third = moments(units, inside)
        known_orders = {2, 3} <= set(usable_orders(act, bias=head.bias, scale=scale))
        two, three = (coefficient(act, order, bias=head.bias, scale=scale) for order in (2, 3))
        return cls(
            size=size,
            norm=norm,
            heard=heard,
            basis=basis,
            gradient=inside,
            whole=Columns.of(units, inside, bias, scaled),
            some=Columns.of(units[:few], inside[:few], bias, scaled),
            second=second,
            third=third,
            ratio=2 * two / three if known_orders else 0.0,
            kinked=slope_levels(act) is not None,
            tolerance=min(max(EXACT, 3 * noise), LOOSEST),
            columns=inside.new_zeros(0, len(units)),
            points=inside.new_zeros(0, size),
        )

    def search(self, starts: int, random: torch.Generator) -> int:
        """Look for inputs that were not found yet; return how many came."""
        left = self.left()
        points = self.from_moments(left, random)
        drawn = torch.randn(starts, len(left), generator=random, dtype=points.dtype) @ left
        norms = 0.5 + torch.rand(starts, 1, generator=random, dtype=points.dtype)  # of the expected one
        points = torch.cat([points, norms * drawn / drawn.norm(dim=1, keepdim=True).clamp(min=1e-30)])
        before = len(self.columns)
        if self.kinked:
            columns, residuals = self.whole.round(points, STEPS)
        else:
            points, residuals = self.some.refine(points, left, STEPS)
            columns = self.whole.slopes(points)
        for place in torch.argsort(residuals).tolist():
            if float(residuals[place]) > self.tolerance or len(self.columns) == self.size:
                break
            if self._is_new(points[place], columns[place]):
                self.columns = torch.cat([self.columns, columns[place, None]])
                self.points = torch.cat([self.points, points[place, None]])
        if self.kinked and len(self.columns) > before:  # a column says where its input is, by second moments
            duals = torch.linalg.lstsq(self.gradient, self.columns.T).solution
            self.points = (self.second @ duals).T
        return len(self.columns) - before

    def _is_new(self, point: Tensor, column: Tensor) -> bool:
        """Say whether an input of possible size differs from all that were found."""
        if not self.kinked and not 0.1 < float(point.norm()) < 10:
            return False
        if not len(self.columns):
            return True
        gaps = (self.columns - column).norm(dim=1) / column.norm()
        return float(gaps.min()) > min(max(1e-3, self.tolerance), 0.05)

    def left(self) -> Tensor:
        """Return an orthonormal basis (k, B) of the span of inputs that were not found yet.

        Projecting the found columns out of G leaves rows in that span alone.
        """
        if not len(self.columns):
            return torch.eye(self.size, dtype=self.gradient.dtype)
        found = torch.linalg.qr(self.columns.T)[0]
        rest = self.gradient - found @ (found.T @ self.gradient)
        rows: Tensor = torch.linalg.svd(torch.linalg.qr(rest)[1])[2]
        return rows[: self.size - len(self.columns)]

    def from_moments(self, left: Tensor, random: torch.Generator) -> Tensor:
        """Return starts for the inputs that are left, from moments in which those found are projected out."""
        if not self.ratio:
            return left.new_zeros(0, self.size)
        away = torch.linalg.svd(self.points)[2][len(self.points) :]  # orthogonal to all that was found
        second = away @ self.second @ away.T
        third = torch.einsum("ia,jb,abc->cij", away, away, self.third)  # (B, k, k)
        inner = torch.einsum("kc,cij->kij", away, third)
        directions, _ = diagonalise(inner, second, random)
        weights = coefficients(torch.cat([second[None], third]), directions)  # (1 + B, k)
        points = self.ratio * (weights[1:] / weights[0]).T
        points = points[torch.isfinite(points).all(1)] @ left.T @ left
        norms = points.norm(dim=1, keepdim=True).clamp(min=1e-30)
        sized: Tensor = points / norms * norms.clamp(0.5, 2.0)
        return sized

    def finish(self) -> None:
        """Put inputs where all units want them; with one kink, columns give them by linear least squares."""
        if not self.kinked and len(self.points):
            eye = torch.eye(self.size, dtype=self.points.dtype)
            self.points, _ = self.whole.refine(self.points, eye, 3)
            self.columns = self.whole.slopes(self.points)


def moments(units: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Return second (B, B) and third moments (B, B, B) by regression on Hermite polynomials of the units."""
    size = units.shape[1]
    left, right = torch.triu_indices(size, size)
    if 1 + size + len(left) > LARGEST:
        return gradient.new_zeros(size, size), gradient.new_zeros(size, size, size)
    products = units[:, left] * units[:, right] - (left == right).to(units)
    features = torch.cat([torch.ones_like(units[:, :1]), units, products], dim=1)
    square = features.T @ features
    square.diagonal().add_(RIDGE * len(units))
    found = torch.cholesky_solve(features.T @ gradient, torch.linalg.cholesky(square))
    second = found[1 : size + 1]
    third = gradient.new_zeros(size, size, size)
    third[left, right] = found[size + 1 :] / 2
    third = third + third.transpose(0, 1)
    third = (third + third.permute(1, 2, 0) + third.permute(2, 0, 1)) / 3  # symmetric in all three
    return (second + second.T) / 2, third


def _reconstruction(
    task: Task, form: Form, head: Head, batch: Batch, size: int, seconds: float
) -> Reconstruction:
    """Say what was found: images with their labels, or features; and how well it explains the gradient."""
    sources = torch.linalg.lstsq(batch.columns.T, batch.gradient).solution  # lambda_i x_i
    if batch.kinked:
        slopes = head.bias_gradient.double()[batch.heard]
        seen = slopes != 0
        errors = torch.linalg.lstsq(batch.columns.T[seen], slopes[seen, None]).solution  # lambda_i
        inputs = sources / errors @ batch.basis
    else:
        inputs = batch.points @ batch.basis * batch.norm
    received = head.weight_gradient.double()[batch.heard]
    gap = (batch.columns.T @ (sources @ batch.basis) - received) * (received != 0)
    residual = float(gap.norm() / received.norm())
    if len(batch.columns) < batch.size:
        log.warning("found %d of %d inputs of layer %r", len(batch.columns), batch.size, form.hidden)
    if not form.takes_images:
        return Reconstruction(
            embeddings=inputs.float(), embedding_layer=form.hidden, confidence=residual, seconds=seconds
        )
    images = denormalised(task, inputs)
    labels, copies = read_labels(form, head, inputs, size)
    whole = len(batch.columns) == batch.size and int(copies.sum()) == size
    images, labels = images.repeat_interleave(copies, dim=0), labels.repeat_interleave(copies)
    counts = labels.bincount(minlength=task.num_classes) if whole else None
    return Reconstruction(
        images=images,
        labels=labels,
        class_counts=counts,
        class_presence=None if counts is None else counts > 0,
        confidence=residual,
        seconds=seconds,
    )


def read_labels(form: Form, head: Head, inputs: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return each input's label, and how often it is in the batch, from the output layer's gradient.

    dL/dA = R^T act(W x + b) is linear in the errors R_ic = copies_i (p_ic - y_ic) / B, and p is known.
    """
    values = form.act(inputs @ head.weight.double().T + head.bias)  # (n, m)
    seen = (head.output_gradient != 0).all(0)
    known = seen if int(seen.sum()) >= 2 * len(inputs) else torch.ones_like(seen)
    errors = torch.linalg.lstsq(values[:, known].T, head.output_gradient.double()[:, known].T).solution
    labels = errors.argmin(dim=1)
    chances = torch.softmax(values.sum(1, keepdim=True) * head.levels, dim=1)
    mine = labels[:, None]
    copies = size * errors.gather(1, mine) / (chances.gather(1, mine) - 1)
    return labels, copies[:, 0].round().long().clamp(1, size)
