"""What was found by errors in the gradient of one linear layer, and the next round of the search."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedsim.attacks.privacy.exact.behind import Behind
from fedsim.attacks.privacy.exact.certificates import NoisySpace, judge, noisy_spaces
from fedsim.attacks.privacy.exact.deflation import deflated, solved_inputs
from fedsim.attacks.privacy.exact.kinks import kinked_errors
from fedsim.attacks.privacy.exact.newton import descend, error_equations
from fedsim.attacks.privacy.exact.search import anneal, error_loss, random_points, random_widths
from fedsim.attacks.privacy.exact.spaces import Spaces, spaces
from fedsim.attacks.privacy.matching.linear_layers import LinearLayer

NEAR = 0.05  # squared share of an error outside its space that is worth a look
SAME = 0.1  # of a typical output's length: ends of the search nearer than this are one example
PARALLEL = 1 - 1e-5  # cosine of the errors of one example
NEWTON = 15  # steps to float precision where errors are smooth
CONTRAST = 0.1  # residual of an error against the next best of the same mask


@dataclass(eq=False)
class ErrorPeel:
    """A layer's gradient, and the examples whose errors were found in it.

    Inputs [x | 1] are kept by their coordinates in the gradient's row space, `basis`.
    """

    gradient: Tensor  # [G | g] basis^T
    weight: Tensor  # [W | b] basis^T
    behind: Behind
    size: int
    classes: int
    basis: Tensor  # (size, in + 1)
    columns: NoisySpace
    errors: Tensor  # (found, units): of length 1
    labels: Tensor  # (found,)
    near: Tensor  # (found, size): coordinates of [x | 1], as near as the search came
    residuals: list[float] = field(default_factory=list)
    tries: int = 0

    @classmethod
    def of(cls, layer: LinearLayer, behind: Behind, size: int, classes: int) -> "ErrorPeel":
        """Begin with the layer's whole gradient."""
        columns, rows = noisy_spaces(layer.augmented, size)
        basis = rows.basis.T
        gradient = layer.augmented @ basis.T
        return cls(
            gradient=gradient,
            weight=torch.cat([layer.weight, layer.bias[:, None]], dim=1) @ basis.T,
            behind=behind,
            size=size,
            classes=classes,
            basis=basis,
            columns=columns,
            errors=gradient.new_empty(0, len(gradient)),
            labels=torch.empty(0, dtype=torch.int64),
            near=gradient.new_empty(0, size),
        )

    def __len__(self) -> int:
        return len(self.errors)

    @property
    def kinked(self) -> bool:
        """Whether errors do not change between kinks: then they are found by the sides of these."""
        return all(act.kinked for act, _, _ in self.behind.steps) and bool(self.behind.steps)

    def search(self, starts: int, steps: int, random: torch.Generator) -> int:
        """Look for examples that are left, from random starts; return how many new ones were found."""
        before, left = len(self), self.size - len(self)
        here = spaces(
            deflated(self.gradient, self.errors),
            self.weight,
            left,
            self.columns.basis,
            ones=self.basis[:, -1],
        )
        starts = starts if left > 1 else self.classes  # one that is left has no coordinate but its label
        labels = torch.randint(self.classes, (starts,), generator=random)
        labels[: min(starts, self.classes)] = torch.arange(self.classes)[:starts]
        points, widths = random_points(here, starts, random), random_widths(here, starts, random)
        small = error_loss(here.to(torch.float32), self.behind.to(torch.float32), labels)
        if left > 1:
            points = anneal(small, points, widths, steps=steps)
        self.tries += starts
        losses = small(points, widths / 50).detach() if self.kinked else small(points, None).detach()
        order = [place for place in losses.argsort().tolist() if losses[place] < NEAR or left == 1]
        chosen = _distinct(here.outputs(points.double()), labels, order, SAME * here.length)
        if chosen:
            self._keep_sure(here, points[chosen].double(), labels[chosen])
        return len(self) - before

    def _keep_sure(self, here: Spaces, points: Tensor, labels: Tensor) -> None:
        """Find the exact errors of the examples near these points, and keep what noise explains."""
        if self.kinked:
            found = kinked_errors(here, self.behind, points)
            errors, labels, residuals = found.errors, found.labels, found.residuals
            likely = found.valid & (found.contrasts < CONTRAST)
        else:
            points, _ = descend(error_equations(here, self.behind, labels), points, NEWTON)
            errors = self.behind.errors(here.outputs(points), labels).detach()
            errors = errors / errors.norm(dim=1, keepdim=True).clamp(min=1e-300)
            residuals, likely = here.outside(errors).norm(dim=1), torch.ones(len(points), dtype=torch.bool)
        expected = self.columns.expected_residuals(errors)
        passing = judge(residuals, expected, errors.shape[1], 2 * self.size - 1, self.tries).passing & likely
        for place in residuals.argsort().tolist():
            error = errors[place : place + 1]
            fresh = not len(self) or float((self.errors @ error[0]).abs().max()) < PARALLEL
            if passing[place] and fresh and len(self) < self.size:
                self.errors = torch.cat([self.errors, error])
                self.labels = torch.cat([self.labels, labels[place : place + 1]])
                self.near = torch.cat([self.near, here.inputs(points[place : place + 1])])
                self.residuals.append(float(residuals[place]))

    def inputs(self) -> tuple[Tensor, Tensor]:
        """Return the inputs (found, size), and the lengths of their errors in the gradient."""
        return solved_inputs(self.gradient, self.errors, self.near, self.basis[:, -1])


def _distinct(outputs: Tensor, labels: Tensor, order: list[int], distance: float) -> list[int]:
    """Return the first of every group of ends that are one example with one label."""
    kept = list[int]()
    for place in order:
        gaps = (outputs[kept] - outputs[place]).norm(dim=1)
        if not bool(((gaps < distance) & (labels[kept] == labels[place])).any()):
            kept.append(place)
    return kept
