"""One batch behind the hidden layer's gradient: its span, its moments, and the search for its inputs."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsim.attacks.privacy import claims
from fedsim.attacks.privacy.least_squares import fit
from fedsim.attacks.privacy.stein.completion import complete
from fedsim.attacks.privacy.stein.decomposition import coefficients, diagonalise
from fedsim.attacks.privacy.stein.head import Form, Head
from fedsim.attacks.privacy.stein.membership import Columns, separable
from fedsim.attacks.privacy.stein.quadrature import coefficient, usable_orders
from fedsim.core.errors import FedsimError

EXACT = 1e-4  # relative residual of a column that passes for an input's, where gradients are exact
LOOSEST = 0.3  # of noisy ones: a wrong column has about 0.5
ROUNDING = 3e-7  # of float32 gradients: smaller singular values are nothing
UNITS = 6  # for each example: so many take part in the search, all in the last steps
KNOWN = 3  # entries for each example that a unit's gradient must have kept
STEPS = 20  # of refinement, from each start
LARGEST = 16_000  # Hermite features whose regression is affordable
RIDGE = 0.01  # of the regression, for each unit


@dataclass(eq=False)
class Batch:
    """One batch in coordinates of its span, in units of the expected norm; and what was found of it."""

    size: int  # different inputs
    norm: float
    scale: float  # deviation of w.x for an input of this norm
    heard: Tensor  # (units,) bool: those that take part, m of them
    basis: Tensor  # (B, d) orthonormal: V
    gradient: Tensor  # (m, B): G V
    bias_gradient: Tensor  # (m,)
    whole: Columns
    some: Columns  # fewer units, for the search
    second: Tensor  # (B, B) second moments
    third: Tensor  # (B, B, B)
    ratio: float  # of a start: third moments over second ones, to coordinates
    tolerance: float
    columns: Tensor  # (found, m): act'(w.x + b) of what was found
    points: Tensor  # (found, B): where it is; of a kinked activation only about
    rejected: Tensor  # (n, m): columns that no input has
    guessed: bool = False  # some were taken although they are outside the tolerance

    @classmethod
    def of(cls, head: Head, form: Form, size: int, norm: float) -> "Batch":
        """Find the span of a batch and its moments; norm: expected of the inputs."""
        span = find_span(head.weight_gradient.double(), size)
        units, size = head.weight.double()[span.heard], len(span.basis)
        if len(units) < 2 * size:
            raise FedsimError(
                f"{len(units)} units of layer {form.hidden!r} were heard of: expected at least "
                f"{2 * size} for {size} examples. Remedy: a larger model.width, or smaller batches."
            )
        scale = norm * float(units.square().mean().sqrt())  # as it was crafted
        inside, units = span.gradient @ span.basis.T, units @ span.basis.T * (norm / scale)
        few = min(len(units), max(UNITS * size, 64))
        act, bias = form.act, head.bias / scale

        def scaled(values: Tensor) -> Tensor:
            return act(scale * values)

        second, third = hidden_moments(units, inside)
        both = {2, 3} <= set(usable_orders(act, bias=head.bias, scale=scale)) and bool(second.any())
        two, three = (coefficient(act, order, bias=head.bias, scale=scale) for order in (2, 3))
        return cls(
            size=size,
            norm=norm,
            scale=scale,
            heard=span.heard,
            basis=span.basis,
            gradient=inside,
            bias_gradient=head.bias_gradient.double()[span.heard],
            whole=Columns.of(units, inside, bias, scaled),
            some=Columns.of(units[:few], inside[:few], bias, scaled),
            second=second,
            third=third,
            ratio=2 * two / three if both else 0.0,
            tolerance=min(max(EXACT, 3 * span.noise), LOOSEST),
            columns=inside.new_zeros(0, len(units)),
            points=inside.new_zeros(0, size),
            rejected=inside.new_zeros(0, len(units)),
        )

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def kinked(self) -> bool:
        """Whether the activation has two slopes and a kink between them."""
        return self.whole.levels is not None

    def search(self, starts: int, random: torch.Generator, tolerance: float) -> int:
        """Look for inputs that were not found yet; return how many came within the tolerance."""
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
            if not float(residuals[place]) < tolerance or len(self.columns) == self.size:
                break
            if self._is_new(points[place], columns[place]):
                self.columns = torch.cat([self.columns, columns[place, None]])
                self.points = torch.cat([self.points, points[place, None]])
        if self.kinked and len(self.columns) > before:  # a column says where its input is, by second moments
            duals = fit(self.gradient, self.columns.T)
            self.points = (self.second @ duals).T
        return len(self.columns) - before

    def _is_new(self, point: Tensor, column: Tensor) -> bool:
        """Say whether an input of possible size differs from all that were found."""
        if not self.kinked and not 0.1 < float(point.norm()) < 10:
            return False
        known = torch.cat([self.columns, self.rejected])
        gaps = (known - column).norm(dim=1) / column.norm()
        return bool((gaps > min(max(1e-3, self.tolerance), 0.05)).all())

    def inputs(self) -> Tensor:
        """Return the coordinates of what was found.

        lambda_i x_i over lambda_i: all there is with one kink, and otherwise the sign, where both signs have
        the same column.
        """
        quotients = torch.nan_to_num(self.sources() / self.errors()[:, None] / self.norm)
        if self.kinked:
            return quotients
        upright = (quotients * self.points).sum(1, keepdim=True) >= 0
        return torch.where(upright, self.points, -self.points)

    def errors(self) -> Tensor:
        """Return lambda_i of what was found, from the gradient of the hidden bias."""
        seen = self.bias_gradient != 0
        columns, target = self.columns.T[seen], self.bias_gradient[seen, None]
        found = fit(columns, target)
        if float((columns @ found - target).norm()) > 10 * self.tolerance * float(target.norm()):
            # An input of zeros is in no other gradient: its column is the same everywhere.
            found = fit(torch.cat([columns, torch.ones_like(target)], dim=1), target)[:-1]
        return found[:, 0]

    def sources(self) -> Tensor:
        """Return lambda_i x_i of what was found, in coordinates of the span."""
        found: Tensor = fit(self.columns.T, self.gradient)
        return found

    def contradictions(self) -> Tensor:
        """Return for each column the share of units where it is not what its input would give."""
        assert self.whole.levels is not None
        distances = self.inputs() @ self.whole.units.T + self.whole.bias
        wrong = (distances > 0) != (self.columns == self.whole.levels[1])
        return (wrong & (distances.abs() > 1e-4)).double().mean(1)  # at the kink itself, rounding decides

    def reject_mixtures(self) -> int:
        """Drop columns that no input has: those of two inputs may add up to two slopes again."""
        if self.whole.levels is None or self.tolerance > 10 * EXACT:
            return 0
        doubted, high = self.contradictions() > 0, self.whole.levels[1]
        false = torch.tensor(
            [
                bool(doubt) and not separable(self.whole.units, self.whole.bias, column == high)
                for doubt, column in zip(doubted, self.columns, strict=True)
            ]
        )
        self.rejected = torch.cat([self.rejected, self.columns[false]])
        self.columns, self.points = self.columns[~false], self.points[~false]
        return int(false.sum())

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
        directions = diagonalise(inner, second, random)
        weights = coefficients(torch.cat([second[None], third]), directions)  # (1 + B, k)
        points = self.ratio * (weights[1:] / weights[0]).T
        points = points[torch.isfinite(points).all(1)] @ left.T @ left
        norms = points.norm(dim=1, keepdim=True).clamp(min=1e-30)
        sized: Tensor = points / norms * norms.clamp(0.5, 2.0)
        return sized

    def finish(self) -> None:
        """Put inputs of a smooth activation where all units want them."""
        if not self.kinked and len(self.points):
            eye = torch.eye(self.size, dtype=self.points.dtype)
            self.points, _ = self.whole.refine(self.points, eye, 3)
            self.columns = self.whole.slopes(self.points)


@dataclass(frozen=True, kw_only=True, eq=False)
class Span:
    """The hidden gradient of the units that were heard of, without holes, and the span of its rows."""

    heard: Tensor  # (units,) bool
    gradient: Tensor  # (m, d)
    basis: Tensor  # (B, d) orthonormal
    noise: float  # singular values of noise, over the smallest of an example


def find_span(gradient: Tensor, size: int) -> Span:
    """Return the space that `size` examples span, or fewer where some are equal."""
    known, whole = gradient != 0, gradient
    silent, dark = ~known.any(1), ~known.any(0)  # inactive units, inputs of zero: of the whole batch
    if bool((known | silent[:, None] | dark).all()):
        heard = ~silent
        gap = gradient.new_zeros(())
    else:  # a sparsifying client's zeros are unknown
        wanted = min(KNOWN * size, int(known.any(0).sum()))
        heard = known.sum(1) >= max(1, wanted)  # of other units nothing can be completed
        if int(heard.sum()) < size:
            raise FedsimError(
                f"{int(heard.sum())} of {len(known)} units kept the {wanted} entries that {size} examples "
                "take. Remedy: smaller batches, or a defense that leaves more."
            )
        claims.expect_room(size**2 * sum(gradient.shape), f"the holes in a gradient of {size} examples")
        whole = complete(gradient, known, size)
        heard &= _sane(whole, known)
        gap = ((whole - gradient)[heard] * known[heard]).square().mean().sqrt()
    whole = whole[heard]
    tall = torch.linalg.qr(whole)[1] if len(whole) > whole.shape[1] else whole
    _, values, rows = torch.linalg.svd(tall, full_matrices=False)
    size = min(size, int((values > ROUNDING * values[:1]).sum()))
    if size == 0:
        raise FedsimError(
            "the hidden layer's gradient is zero everywhere: it spans nothing. "
            "Remedy: distrust this client, or a weaker defense."
        )
    noise = float(gap) * sum(math.sqrt(side) for side in whole.shape)
    if len(values) > size:
        noise = max(noise, float(values[size]))
    return Span(heard=heard, gradient=whole, basis=rows[:size], noise=noise / float(values[size - 1]))


def _sane(completed: Tensor, known: Tensor) -> Tensor:
    """Return which rows of a completed matrix are not far larger where they are unknown than where known."""
    square = completed.square()
    inside = (square * known).sum(1) / known.sum(1).clamp(min=1)
    outside = (square * ~known).sum(1) / (~known).sum(1).clamp(min=1)
    return outside <= 4 * inside  # what a client leaves out is small


def hidden_moments(units: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Return second (B, B) and third moments (B, B, B) by regression on Hermite polynomials of the units.

    Zeros and nothing, where there are too many examples for that.
    """
    size = units.shape[1]
    left, right = torch.triu_indices(size, size)
    count = 1 + size + len(left)
    if count > LARGEST or count * len(units) > claims.MOST_NUMBERS:
        return gradient.new_zeros(size, size), gradient.new_zeros(0, 0, 0)
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
