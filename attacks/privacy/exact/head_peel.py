"""What was found of a batch in the gradient of a model's last layer, and the next round of the search.

An example's error there is p - e_y, and lies in the column space. A client's float32 rounds p_y - 1 by what
it rounds 1 by, which is nothing beside a large error and all of a small one. So the entry of the label is
left free: the probabilities of the other classes, each exact relative to itself, must lie in the column space
but for that entry. So examples that the model is nearly sure of are found as well as others.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedsim.attacks.privacy.exact.behind import softmax_error
from fedsim.attacks.privacy.exact.certificates import CLEAR, NoisySpace, blur, judge, noisy_spaces
from fedsim.attacks.privacy.exact.counting import at_least
from fedsim.attacks.privacy.exact.deflation import deflated, solved_inputs
from fedsim.attacks.privacy.exact.newton import Equations, descend
from fedsim.attacks.privacy.exact.spaces import Spaces, spaces
from fedsim.attacks.privacy.matching.linear_layers import LinearLayer

NEAR = 0.03  # relative residual in the deflated gradient that is worth a look in the whole one
SAME = 0.06  # of a typical output's length: ends of the search nearer than this are one example
AT_ONCE = 2  # candidates of a class that are looked at in a round
NONNEGATIVE = 0.05  # weight of features below zero in a search that knows there are none
ROUGH, FINE = 10, 12  # Gauss-Newton steps with that weight, then without
SURE, LIKELY = (3.0, 0.01), (10.0, 0.03)  # residual against the expected one; weight of an example off 1
BLURRED = 20.0  # deviation of an example's weight beyond which it may be anything
ROUNDED = 1e-7  # of float32, relative to a logit or to 1
CHUNK = 2**24  # numbers of the largest temporary tensor
SETTLING = 4  # rounds in which inputs follow from errors and errors from inputs


@dataclass(eq=False)
class HeadPeel:
    """The last layer's gradient, and the examples that were found in it.

    Inputs [f | 1] are kept by coordinates in the row space, `basis`. Rows are multiplied by `scales`.
    """

    gradient: Tensor  # scales [G | g] basis^T
    scales: Tensor  # (C,)
    weight: Tensor  # [W | b] basis^T
    biases: Tensor  # g
    size: int
    nonnegative: bool  # whether features are never below zero
    basis: Tensor  # (rank, features + 1)
    columns: NoisySpace
    beside: Tensor  # (C, C - rank), orthonormal: all that is outside the column space
    free: Tensor  # (C, C - rank): of each class, the direction there that its entry adds to the column space
    inverse: Tensor  # (rank, C): of the gradient
    errors: Tensor  # (found, C): p - e_y
    labels: Tensor  # (found,)
    copies: Tensor  # (found,): how many equal examples each stands for
    near: Tensor  # (found, rank): coordinates of [f | 1]
    residuals: list[float] = field(default_factory=list)
    tries: int = 0

    @classmethod
    def of(
        cls, layer: LinearLayer, size: int, rank: int, *, nonnegative: bool, scales: Tensor | None = None
    ) -> "HeadPeel":
        """Begin with the whole gradient of the layer, of so many examples, of which so many differ."""
        scales = torch.ones_like(layer.bias) if scales is None else scales
        columns, rows = noisy_spaces(whole := scales[:, None] * layer.augmented, rank)
        basis = rows.basis.T
        gradient = whole @ basis.T
        beside = torch.linalg.qr(columns.basis, mode="complete")[0][:, rank:]
        return cls(
            gradient=gradient,
            scales=scales,
            weight=torch.cat([layer.weight, layer.bias[:, None]], dim=1) @ basis.T,
            biases=layer.bias_gradient,
            size=size,
            nonnegative=nonnegative,
            basis=basis,
            columns=columns,
            beside=beside,
            free=beside / beside.norm(dim=1, keepdim=True).clamp(min=1e-12),
            inverse=torch.linalg.pinv(gradient),
            errors=gradient.new_empty(0, len(gradient)),
            labels=torch.empty(0, dtype=torch.int64),
            copies=torch.empty(0, dtype=torch.int64),
            near=gradient.new_empty(0, rank),
        )

    def __len__(self) -> int:
        return len(self.errors)

    @property
    def different(self) -> int:
        """How many different examples there are."""
        return len(self.basis)

    def at_least(self) -> Tensor:
        """Return how many examples of each class there are for certain beside those found.

        Summed over what is left, K g_j = sum p_j - n_j, and no probability is below zero: n_j >= -K g_j.
        """
        missing = self.size - int(self.copies.sum())
        return at_least(self.rest(), missing, self.size * self.columns.noise)

    def open_labels(self) -> Tensor:
        """Return the classes that an example which is left may have."""
        least = self.at_least()
        unknown = self.size - int(self.copies.sum()) - int(least.sum())
        return torch.arange(len(least)) if unknown > 0 else least.nonzero()[:, 0]

    def fewest(self) -> Tensor:
        """Return how many examples of each class there are for certain, whatever was found."""
        return at_least(self.size * self.biases, self.size, self.size * self.columns.noise)

    def rest(self) -> Tensor:
        """Return what the found examples leave of K g."""
        return self.size * self.biases - (self.copies[:, None] * self.errors).sum(dim=0)

    def _most(self) -> Tensor:
        """Return how many examples of each class there may be beside those found."""
        least = self.fewest()
        seen = torch.zeros_like(least).index_add(0, self.labels, self.copies)
        return least + max(0, self.size - int(least.sum())) - seen

    def search(self, starts: int, spread: float, random: torch.Generator, *, sure: bool) -> int:
        """Look for examples that are left, from each open class; return how many new ones were found."""
        before, left = len(self), self.different - len(self)
        here = self._spaces(deflated(self.gradient, self.scales * self.errors), left)
        labels = self.open_labels().repeat_interleave(starts)
        if not len(labels):
            return 0
        points = self._starts(here, labels, starts, spread, random)
        self.tries += len(points)
        if left > 1:
            if self.nonnegative:
                points, _ = self._descended(here, labels, points, ROUGH, NONNEGATIVE)
            points, residuals = self._descended(here, labels, points, FINE)
        else:
            residuals = torch.zeros(len(points))
        chosen = _distinct(here.outputs(points), labels, residuals, SAME * here.length)
        if chosen:
            self._keep_sure(here.outputs(points[chosen]), labels[chosen], SURE if sure else LIKELY)
        return len(self) - before

    def settle(self) -> None:
        """Let inputs follow from all errors at once, and errors from inputs, while that changes little."""
        if len(self) < self.different:  # what is missing would be made up for by the others
            return
        for _ in range(SETTLING):
            errors = self.scales * self.errors
            inputs, _ = solved_inputs(self.gradient, errors, self.near, self.basis[:, -1])
            outputs = inputs @ self.weight.T
            errors = softmax_error(outputs, self.labels)
            moved = (errors - self.errors).norm(dim=1) / self.errors.norm(dim=1).clamp(min=1e-300)
            calm = ((moved < NEAR) & errors.isfinite().all(dim=1))[:, None]
            self.near, self.errors = (
                torch.where(calm, inputs, self.near),
                torch.where(calm, errors, self.errors),
            )

    def certified(self) -> Tensor:
        """Return of each example whether it is exact for certain; none is while others are missing."""
        if not len(self) or len(self) < self.different:
            return torch.zeros(len(self), dtype=torch.bool)
        residuals, expected = self._judged(self.near, self.labels)
        judged = judge(residuals, expected, len(self.gradient) - 1, 2 * self.different - 1, self.tries)
        whole = self._spaces(self.gradient, self.different)
        points = whole.points(self.near @ self.weight.T)
        noise = torch.maximum(expected, residuals)
        blurred = self._blur(whole, points, self.labels, noise, whole.directions.expand(len(points), -1, -1))
        sure: Tensor = judged.certified & (blurred < CLEAR * self.near.norm(dim=1))
        return sure

    def _blur(self, whole: Spaces, points: Tensor, labels: Tensor, noise: Tensor, readers: Tensor) -> Tensor:
        """Return the deviation that noise in the residuals makes in what is read off points.

        readers (N, unknowns, numbers): linear in the points. By the equations' own slopes.
        """
        squares = self._equations(whole, labels)(points)[1]
        freedom = max(1, len(self.gradient) - 1 - self.different)
        return blur(squares, readers, noise / math.sqrt(freedom), loose=False)

    def _judged(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return what of examples' errors lies outside, relatively, and what noise would leave there."""
        outputs = inputs @ self.weight.T
        shares = self.scales * others(outputs, labels)
        outside = self._outside(shares, labels).norm(dim=1) / shares.norm(dim=1)
        rounding = ROUNDED * outputs.abs().amax(dim=1)  # exp makes of a logit's rounding a share's
        return outside, self.columns.expected_residuals(shares) + rounding

    def _keep_sure(self, outputs: Tensor, labels: Tensor, limits: tuple[float, float]) -> None:
        """Go on to examples of the whole gradient, which nothing was subtracted from; keep the sure ones."""
        whole = self._spaces(self.gradient, self.different)
        points, _ = self._descended(whole, labels, whole.points(outputs), FINE)
        inputs, outputs = whole.inputs(points), whole.outputs(points)
        residuals, expected = self._judged(inputs, labels)
        errors = softmax_error(outputs, labels)
        # [G | g] = D^T [F | 1]: an input is 1 on its own error through the pseudo-inverse; of n equal, 1 / n.
        scaled = self.scales * errors
        weights = (inputs @ self.inverse * scaled / self.size).sum(dim=1)
        spare = self.size - int(self.copies.sum()) - (self.different - len(self))
        copies = (1 / weights).nan_to_num(1.0).round().clamp(1, 1 + max(0, spare))
        duals = (self.inverse @ scaled.T).T / self.size  # what reads an example's weight off its input
        readers = (duals @ whole.directions.T)[:, :, None]
        blurred = self._blur(whole, points, labels, torch.maximum(expected, residuals), readers)
        rounded = ROUNDED * self.scales[labels] / scaled.norm(dim=1).clamp(min=1e-300)
        off = (weights * copies - 1).abs() - blurred.clamp(max=limits[1]) - rounded
        judged = judge(residuals, expected, len(self.gradient) - 1, 2 * self.different - 1, self.tries)
        passing = judged.passing & (residuals < limits[0] * expected)
        passing &= (off < limits[1]) & (blurred < BLURRED)
        allowed, taken = self._most(), set[int]()
        for place in residuals.argsort().tolist():
            label = int(labels[place])
            known = self.near[self.labels == label] @ self.weight.T
            fresh = not len(known) or float((known - outputs[place]).norm(dim=1).min()) > SAME * whole.length
            passes = bool(passing[place]) and fresh and int(copies[place]) <= int(allowed[label])
            if passes and label not in taken and len(self) < self.different:
                taken.add(label)
                self.errors = torch.cat([self.errors, errors[place : place + 1]])
                self.labels = torch.cat([self.labels, labels[place : place + 1]])
                self.copies = torch.cat([self.copies, copies[place : place + 1].long()])
                self.near = torch.cat([self.near, inputs[place : place + 1]])
                self.residuals.append(float(residuals[place]))

    def _starts(
        self, here: Spaces, labels: Tensor, each: int, spread: float, random: torch.Generator
    ) -> Tensor:
        """Return starts around the classes' means, the quotients of what the found ones leave."""
        rest = self.gradient - (self.copies[:, None] * self.scales * self.errors / self.size).T @ self.near
        biases = rest @ self.basis[:, -1]
        quotients = here.points((rest / biases[:, None]) @ self.weight.T)
        pooled = here.points((biases @ rest / biases.dot(biases))[None] @ self.weight.T)
        near = quotients.norm(dim=1, keepdim=True) < 3 * here.length  # false where nothing was divided by
        points = torch.where(near, quotients, pooled.nan_to_num(0.0))[labels]
        noise = torch.randn(points.shape, generator=random, dtype=points.dtype)
        width = spread * torch.rand(len(points), 1, generator=random, dtype=points.dtype)
        width[::each] = 0.0
        found: Tensor = points + width * noise * here.length / math.sqrt(max(1, points.shape[1]))
        return found

    def _descended(
        self, here: Spaces, labels: Tensor, points: Tensor, steps: int, nonnegative: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """Take steps from the points, of so many at a time as memory has room for."""
        each = max(1, CHUNK // (len(self.gradient) * max(1, points.shape[1])))
        parts = [
            descend(self._equations(here, some, nonnegative), part, steps)
            for some, part in zip(torch.split(labels, each), torch.split(points, each), strict=True)
        ]
        return torch.cat([ends for ends, _ in parts]), torch.cat([residuals for _, residuals in parts])

    def _spaces(self, gradient: Tensor, rank: int) -> Spaces:
        return spaces(gradient, self.weight, rank, self.columns.basis, ones=self.basis[:, -1])

    def _outside(self, shares: Tensor, labels: Tensor) -> Tensor:
        """Return what of shares is outside the column space and the label's entry, by coordinates there."""
        free, outside = self.free[labels], shares @ self.beside
        return outside - (outside * free).sum(dim=1, keepdim=True) * free

    def _equations(self, here: Spaces, labels: Tensor, nonnegative: float = 0.0) -> Equations:
        """Return the equations of examples of these classes; nonnegative: weight of features below zero."""
        free = self.free[labels]
        directions, origin = (side @ self.basis[:, :-1] for side in (here.directions, here.origin))

        def equations(points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            own = others(here.outputs(points), labels)
            shares = self.scales * own
            jacobians = (shares[:, None, :] * here.slant) @ self.beside
            jacobians -= (own @ here.slant.T)[:, :, None] * (shares @ self.beside)[:, None, :]
            along = jacobians @ free[:, :, None]
            squares = jacobians @ jacobians.mT - along @ along.mT
            gaps, lengths = self._outside(shares, labels), shares.square().sum(dim=1)
            slopes = (jacobians @ gaps[:, :, None])[:, :, 0] / lengths[:, None]
            losses, squares = gaps.square().sum(dim=1) / lengths, squares / lengths[:, None, None]
            if nonnegative:
                features = points @ directions + origin
                factors = nonnegative**2 / features.square().sum(dim=1).clamp(min=1e-300)
                below = features.clamp(max=0)
                losses = losses + factors * below.square().sum(dim=1)
                slopes = slopes + factors[:, None] * (below @ directions.T)
                masked = directions * (features < 0)[:, None, :]
                squares = squares + factors[:, None, None] * (masked @ directions.T)
            return losses, squares, slopes

        return equations


def others(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the probabilities of the other classes, given that it is none of their own."""
    return logits.scatter(1, labels[:, None], -math.inf).softmax(dim=1)


def _distinct(outputs: Tensor, labels: Tensor, residuals: Tensor, distance: float) -> list[int]:
    """Return the surest ends of the search, a few of each class that are not the same."""
    kept = dict[int, list[int]]()
    for place in residuals.argsort().tolist():
        same = kept.setdefault(int(labels[place]), [])
        new = all(float((outputs[place] - outputs[other]).norm()) > distance for other in same)
        if residuals[place] < NEAR and len(same) < AT_ONCE and new:
            same.append(place)
    return [place for places in kept.values() for place in places]
