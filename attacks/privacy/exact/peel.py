"""What peeling has found so far in the gradients of two successive linear layers, and its next round."""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedsim.attacks.privacy.exact.behind import Behind, mismatch, rounded_errors, rounded_label
from fedsim.attacks.privacy.exact.certificates import (
    CLEAR,
    FAINT,
    ROOM,
    NoisySpace,
    apart,
    blur,
    judge,
    noisy_spaces,
)
from fedsim.attacks.privacy.exact.deflation import deflated
from fedsim.attacks.privacy.exact.membership import Membership, derivative, with_one
from fedsim.attacks.privacy.exact.search import WIDEST, anneal, random_points, random_widths
from fedsim.attacks.privacy.exact.settling import settled
from fedsim.attacks.privacy.least_squares import fit
from fedsim.attacks.privacy.matching.linear_layers import Between, LinearLayer, clear_rank, row_space

BLURRED = 0.1  # of the typical length: the same for inputs of later local steps
SAME = 1e-3  # of the typical length: two points nearer than this are one image
NEAR = 3e-3  # residual in the peeled gradients that is worth a look in the whole ones
WRONG = 0.1  # residual of a point that has nothing to do with the batch
ALMOST = 0.05  # residual of an input of a later local step, whose activations have moved
MISMATCH = 0.15  # of an input's error with that of the surest label: those of later local steps have moved
HAZY = 0.03  # residual of a quiet example up to which it can be told from others
DOUBT = 5.0  # residuals of a point, as a share of the typical length, within which others are the same
ALONE = 1e-5  # share of an error outside the column space, up to which a quotient is an example
POLISH = 8  # Gauss-Newton steps at the end


@dataclass(eq=False)
class Peel:
    """The two layers' gradients, and what was found in them.

    An update of several local steps with the same inputs again: the first layer's gradient has `size` of
    them, the second's `activations` in its rows, since the weights before it have moved.
    Inputs [x | 1] are kept by their coordinates in the first gradient's row space, `basis`.
    """

    first: Tensor  # [G1 | g1] basis^T
    second: Tensor  # [G2 | g2]
    weight: Tensor  # [W1 | b1] basis^T
    next_weight: Tensor  # W2
    act: Between
    size: int
    activations: int
    basis: Tensor  # (size, in + 1)
    scales: tuple[Tensor, Tensor]  # (out, 1), (next out, 1)
    columns: tuple[Tensor, Tensor]  # orthonormal bases of both gradients' column spaces
    rows: tuple[NoisySpace, NoisySpace]  # of both gradients
    whole: Membership
    found: Tensor  # (found, size): coordinates of [x | 1]
    outputs: Tensor  # (found, out + 1): [f(z) | 1]
    errors: Tensor  # (found, out): rows of D1
    next_errors: Tensor  # (found, next out): rows of D2
    residuals: list[float] = field(default_factory=list)
    certified: list[bool] = field(default_factory=list)
    tries: int = 0  # starts so far
    decoys: Tensor | None = None  # (N, size): inputs of later local steps, which are nearly members; None: no
    behind: tuple[Behind, int] | None = None  # the network behind, and the examples of a local step

    @classmethod
    def of(
        cls,
        first: LinearLayer,
        second: LinearLayer,
        act: Between,
        size: int,
        activations: int | None = None,
        scales: tuple[Tensor, Tensor] | None = None,
    ) -> "Peel":
        """Begin with the layers' whole gradients; activations: more than `size`, where inputs come again."""
        activations = activations or size
        scales = scales or (first.weight.new_ones(1, 1), first.weight.new_ones(1, 1))
        whole, two = scales[0] * first.augmented, scales[1] * second.augmented
        left, rows = noisy_spaces(whole, size)
        next_left, next_rows = noisy_spaces(two, activations)
        basis = rows.basis.T
        one = whole @ basis.T
        weight = torch.cat([first.weight, first.bias[:, None]], dim=1) @ basis.T
        return cls(
            first=one,
            second=two,
            weight=weight,
            next_weight=second.weight,
            act=act,
            size=size,
            activations=activations,
            basis=basis,
            scales=scales,
            columns=(left.basis, next_left.basis),
            rows=(rows, next_rows),
            whole=Membership(one, two, weight, act, (size, activations), basis[:, -1]),
            found=one.new_empty(0, size),
            outputs=one.new_empty(0, two.shape[1]),
            errors=one.new_empty(0, len(one)),
            next_errors=one.new_empty(0, len(two)),
        )

    def __len__(self) -> int:
        return len(self.found)

    @property
    def scaled(self) -> bool:
        """Whether rows of the gradients were multiplied."""
        return any(bool((factors != 1).any()) for factors in self.scales)

    @property
    def inputs(self) -> Tensor:
        """The inputs [x | 1] that were found."""
        return self.found @ self.basis

    @property
    def scale(self) -> float:
        """The typical length of an input, from the pooled one."""
        bias = self.first @ self.basis[:, -1]
        return float((bias @ self.first).norm() / bias.dot(bias))

    @property
    def residual(self) -> float:
        """The worst distance of a found input's activations from their space, or what is left of G1."""
        explained = fit(self.found.T, self.first.T).T @ self.found
        unexplained = float((self.first - explained).norm() / self.first.norm())
        return max([unexplained, *self.residuals])

    def search(
        self,
        starts: int,
        tolerance: float | None,
        random: torch.Generator,
        *,
        steps: int = POLISH,
        annealing: int = 0,
        widest: tuple[float, float] = WIDEST,
        without_decoys: bool = False,
        by_errors: bool = False,
        undeflated: bool = False,
    ) -> int:
        """Look for inputs that are left, from random starts; return how many new ones were found.

        by_errors: errors that the network behind gives lead the search as well. undeflated: nothing is
        subtracted, which blurs quiet examples.
        """
        before, known = len(self), (self.found, self.errors, self.next_errors, self.outputs)
        found, errors, next_errors, outputs = (part[: 0 if undeflated else None] for part in known)
        if self.decoys is not None and without_decoys:  # taken out as well, as far as they are known
            parts = [self._parts(row[None]) for row in self.decoys[: (self.size - before) // 2]]
            found = torch.cat([found, self.decoys[: len(parts)]])
            outputs, errors, next_errors = (
                torch.cat([known, *(part[place] for part in parts)])
                for place, known in enumerate((outputs, errors, next_errors))
            )
        left, first = self.size - len(found), self.first - errors.T @ found
        self.tries += starts
        if left == 1:  # one outer product: its rows are the input
            row = row_space(first, 1)[0]
            candidates = (row / row.dot(self.basis[:, -1]))[None]
            candidates = candidates[candidates.isfinite().all(dim=1)]
        else:
            again = self.activations > self.size  # found inputs have more activations than one to subtract
            second = self.second if again else self.second - next_errors.T @ outputs
            ranks = left, self.activations if again else left
            rest = Membership(first, second, self.weight, self.act, ranks, self.basis[:, -1])
            points = random_points(rest.first, starts, random)
            if annealing:
                widths = random_widths(rest.first, starts, random, widest)
                loss = rest.loss()
                if by_errors and self.behind is not None:
                    labels = torch.randint(len(self.behind[0].steps[-1][2]), (starts,), generator=random)
                    loss = rest.loss_with_errors(self.behind[0], self.columns, labels)
                points = anneal(loss, points, widths, steps=annealing)
            points, residuals = rest.descend(points.double(), steps)
            inputs = rest.first.inputs(points)
            near = (ROOM * self._expected(inputs)).clamp(min=max(NEAR, tolerance or 0), max=WRONG)
            candidates = inputs[residuals < (near if self.decoys is None and not self.scaled else WRONG)]
        if self.size == 1 and len(candidates):
            self.found = candidates
            self.errors = (self.first @ candidates[0] / candidates[0].dot(candidates[0]))[None]
            self.certified = [clear_rank(self.second) == 1]
        elif len(candidates):
            self.consider(candidates, tolerance)
        return len(self) - before

    def consider(self, candidates: Tensor, tolerance: float | None = None) -> None:
        """Keep what is found near these inputs; the peeled gradients carry errors, the whole ones do not."""
        distinct = self._distinct(candidates, SAME if self.decoys is None else BLURRED)
        self.tries += len(distinct)
        own = self.whole.first.points(distinct @ self.weight.T)
        self._keep_sure(*self.whole.descend(own, POLISH), tolerance)

    def consider_alone(self) -> None:
        """Keep inputs that a unit sees alone, its row's quotient: their errors lie in the column space."""
        if self.behind is None or not self.scaled:
            return
        biases = self.first @ self.basis[:, -1]
        rows = self.first[biases != 0] / biases[biases != 0, None]
        network, column, scale = self.behind[0], self.columns[0], self.scales[0]
        shares = [rounded_label(network, row[None] @ self.weight.T, column, scale)[2] for row in rows]
        for share, row in sorted(zip(shares, rows[:, None], strict=True), key=lambda pair: pair[0]):
            if share < ALONE and len(self) < self.size and len(self._distinct(row, BLURRED)):
                self._keep(row, share, certified=False)

    def settle(self, behind: Behind, labels: Tensor, weights: Tensor) -> None:
        """Let all inputs follow from the whole first gradient at once; weights: of each in it."""
        if self.size == len(self) > 1:
            here = self.whole.first
            points = here.points(self.found @ self.weight.T)
            self.found = here.inputs(settled(here, behind, self.first, points, labels, weights))

    def sure(self) -> Tensor:
        """Say which inputs are exact for certain: none of which a twin was found, or may be missing."""
        certified = torch.tensor(self.certified, dtype=torch.bool) & apart(self.found)
        if 0 < len(self) < self.size:
            left = torch.linalg.svdvals(deflated(self.first, self.errors))[self.size - len(self) - 1]
            own = (self.errors.norm(dim=1) * self.found.norm(dim=1)).median()
            certified &= bool(left > FAINT * own)
        return certified

    def _keep_sure(self, points: Tensor, residuals: Tensor, tolerance: float | None) -> None:
        """Keep what noise explains, the surest first."""
        inputs = self.whole.first.inputs(points)
        taken = self.size + self.activations - 1
        expected = self._expected(inputs)
        judged = judge(residuals, expected, self.second.shape[1], taken, self.tries)
        passing = judged.passing if tolerance is None else residuals < tolerance
        passing = passing & (residuals < (HAZY if self.scaled else math.inf))
        sure = judged.certified
        sure[sure.clone()] = self._clear(points[sure], torch.maximum(residuals, expected)[sure])
        for place in residuals.argsort().tolist():
            if passing[place] and len(self) < self.size:
                self._keep(inputs[place : place + 1], float(residuals[place]), bool(sure[place]))
        if self.decoys is not None:
            almost = inputs[~passing & (residuals < ALMOST)]
            fresh = self._distinct(almost, BLURRED, torch.cat([self.found, self.decoys]))
            self.decoys = torch.cat([self.decoys, fresh])

    def _clear(self, points: Tensor, noise: Tensor) -> Tensor:
        """Say which points their activations hold so fast that noise of this share does not matter."""
        first = self.whole.first
        inputs, freedom = first.inputs(points), max(1, self.second.shape[1] - self.activations)
        lengths = with_one(self.act(first.outputs(points))).norm(dim=1)
        squares = self.whole._normal_equations(points)[1]
        readers = first.directions.expand(len(points), -1, -1)
        deviations = blur(squares, readers, noise * lengths / math.sqrt(freedom))
        clear: Tensor = deviations < CLEAR * inputs.norm(dim=1)
        return clear

    def _expected(self, inputs: Tensor) -> Tensor:
        """Return the share of each input's activations that noise in both gradients leaves outside."""
        outputs = with_one(self.act(inputs @ self.weight.T))
        rows, next_rows = self.rows
        return next_rows.expected_residuals(outputs) + rows.expected_residuals(inputs @ self.basis)

    def _distinct(self, candidates: Tensor, same: float = SAME, known: Tensor | None = None) -> Tensor:
        kept = list[Tensor]()
        known = self.found if known is None else known
        for row in candidates:
            others = torch.cat([known, *(one[None] for one in kept)])
            if not len(others) or float((others - row).norm(dim=1).min()) > same * self.scale:
                kept.append(row)
        return torch.stack(kept) if kept else candidates[:0]

    def _keep(self, row: Tensor, residual: float, certified: bool) -> None:
        """Add an input, with the rows of D1 and D2 that belong to it."""
        if len(self._distinct(row, max(SAME, DOUBT * residual))) == 0:
            return
        output, error, next_error = self._parts(row)
        if self.decoys is not None and self.behind is not None:
            network, each = self.behind
            if float(mismatch(network, row @ self.weight.T, error, each)) > MISMATCH:  # of a later step
                return
        self.residuals.append(residual)
        self.certified.append(certified)
        self.found = torch.cat([self.found, row])
        self.outputs = torch.cat([self.outputs, output])
        self.errors = torch.cat([self.errors, error])
        self.next_errors = torch.cat([self.next_errors, next_error])

    def _parts(self, row: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return an input's activations [f(z) | 1], and its rows of D1 and D2."""
        values = row @ self.weight.T
        one, two = self.columns
        if self.behind is not None and self.scaled:  # D2 is not known where louder ones are
            error, next_error = rounded_errors(self.behind[0], values, one, self.scales)
        else:
            slopes = derivative(self.act, values)[0][:, None]
            given = self.scales[0] * slopes * (self.next_weight.T @ (two / self.scales[1]))
            null = torch.linalg.svd(torch.cat([one, -given], dim=1), full_matrices=False)[2][-1]
            error, next_error = (one @ null[: one.shape[1]])[None], (two @ null[one.shape[1] :])[None]
        # [G1 | g1] = D1^T [X | 1], so the input is 1 on its own error through the pseudo-inverse.
        factor = 1 / fit(self.first, error.T)[:, 0].dot(row[0])
        return with_one(self.act(values)), factor * error, factor * next_error
