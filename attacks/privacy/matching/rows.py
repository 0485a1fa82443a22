"""What a search over rows of a table moves: numbers, and scores of categories that softmax makes shares of.

Paper: Vero et al., TabLeak: Tabular Data Leakage in Federated Learning (ICML 2023), section 4.
"""

from collections.abc import Sequence

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from fedsim.attacks.privacy.matching.parametrisations import Pixels
from fedsim.core.errors import FedsimError
from fedsim.core.inputs import Row
from fedsim.core.types import Task

SURE = 4.0  # scores of the category that a start shows most: e^4 times as likely


class Rows(Pixels):
    """Rows of a table in normalised units, whose categories always add up to one."""

    def __init__(self, task: Task) -> None:
        """Prepare for the columns of a task."""
        super().__init__(task)
        if not isinstance(task.inputs, Row):
            raise FedsimError(
                "attack.parametrisation=rows: the data's inputs are no rows of a table. "
                "Remedy: data=adult, tabular or csv, or attack.parametrisation=pixels."
            )
        self.form, self.groups = task.inputs, task.inputs.groups

    def point(self, images: Tensor) -> Tensor:
        """Return the numbers and scores that stand for rows in normalised units."""
        flat = self.pixels(images.to(self.mean)).flatten(1)
        made = flat.clone()
        for first, end in self.groups:
            made[:, first:end] = SURE * torch.tanh(
                flat[:, first:end] - flat[:, first:end].mean(dim=1, keepdim=True)
            )
        return made

    def images(self, point: Tensor) -> Tensor:
        """Return the rows in normalised units that a point stands for."""
        parts, before = list[Tensor](), 0
        for first, end in self.groups:
            parts += [point[:, before:first], point[:, first:end].softmax(dim=1)]
            before = end
        pixels = torch.cat([*parts, point[:, before:]], dim=1).view(-1, *self.shape)
        return (pixels - self.mean) / self.std

    def keep_inside(self, point: Tensor) -> None:
        """Move numbers back to their ranges; scores are free."""
        before = 0
        for first, end in (*self.groups, (point.shape[1], point.shape[1])):
            point[:, before:first].clamp_(0, 1)
            before = end

    def pooled(self, guesses: Sequence[Tensor], best: int, labels: Tensor) -> Tensor:
        """Return the batch that guesses at it agree on: medians of numbers, most votes for categories.

        Rows have no order: those of every guess are first paired with the best one's, label by label.
        """
        anchor, classes = self._cells(guesses[best]), labels.to(self.mean).view(len(labels), -1)
        apart = anchor.shape[1] * torch.cdist(classes, classes)  # rows of other labels are never nearer
        paired = list[Tensor]()
        for rows in map(self._cells, guesses):
            cost = torch.cdist(anchor, rows, p=1) + apart
            paired.append(
                rows[torch.from_numpy(linear_sum_assignment(cost.cpu().numpy())[1]).to(rows.device)]
            )
        agreed, ties = torch.stack(paired).quantile(0.5, dim=0), torch.stack(paired).mean(dim=0) / len(paired)
        votes = torch.stack([self.form.choices(rows) for rows in paired]).mean(dim=0)
        for first, end in self.groups:
            agreed[:, first:end] = votes[:, first:end] / 2 + ties[:, first:end] / 4  # by shares
        pixels = self.form.choices(agreed).view(-1, *self.shape)
        return (pixels - self.mean) / self.std

    def _cells(self, images: Tensor) -> Tensor:
        """Return rows in normalised units as they stand in the table, flat."""
        return self.pixels(images).flatten(1).clamp(0, 1)
