"""Peeling: a unit that fires for one image shows it; what is known of it is taken out of all other units.

Row j of [G | g] is the sum of [x | 1] times the error of x at unit j, over the images that it fires for.
A row of one image has it as its quotient. That is no guess: the network says what error such an image
with a label has at unit j, and the row's last entry is that error. Then the error at every other unit
follows, the image is subtracted everywhere, and rows of two images become rows of one (as Luby's codes
are decoded).

Units of one direction fire for all images above their thresholds: the difference of a unit and the next
higher one of the same direction, and the same errors, is the sum over what lies between the two: a bin.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedsim.attacks.privacy.crafted.readout import Readout

CHUNK = 128  # candidates that are looked at together
NEAR_KINK = 1e-5  # of a typical output: there rounding decides whether a unit fires
SAME = 1e-3  # relative distance of images that are one
REDUNDANT = 2  # rows that an image must explain, beside no other, to be certain


@dataclass(eq=False)
class Peel:
    """What is left of the rows, and the images that were found in them."""

    readout: Readout
    size: int  # examples behind the mean
    most: int  # of them that these rows can be of
    tolerance: float  # relative gap between an error and its prediction
    above: Tensor = field(init=False)  # (units,): the next higher unit of the same direction; -1: none
    rows: Tensor = field(init=False)  # of bins
    inputs: Tensor = field(init=False)  # (found, in + 1)
    errors: Tensor = field(init=False)  # (found, rows)
    labels: Tensor = field(init=False)
    noise: float = field(init=False)  # of an entry

    def __post_init__(self) -> None:
        whole = self.readout.gradient
        self.above = next_above(self.readout)
        self.rows = self.binned(whole)
        self.noise = 3e-7 * float(whole.abs().max())
        self.inputs = whole.new_empty(0, whole.shape[1])
        self.errors, self.labels = whole.new_empty(0, len(whole)), torch.empty(0, dtype=torch.int64)

    def __len__(self) -> int:
        return len(self.inputs)

    def binned(self, rows: Tensor) -> Tensor:
        """Return differences of neighbours along the first axis."""
        has = (self.above >= 0).view(-1, *[1] * (rows.ndim - 1))
        return rows - torch.where(has, rows[self.above], torch.zeros_like(rows[:1]))

    def sums(self) -> Tensor:
        """Return what is left as it was before differences were taken."""
        whole, order = self.rows.clone(), (-self.readout.bias).argsort(descending=True)
        for unit in order.tolist():
            if (higher := int(self.above[unit])) >= 0:
                whole[unit] += whole[higher]
        return whole

    def search(self) -> None:
        """Peel until no row shows one image alone."""
        fresh = torch.ones(len(self.rows), dtype=torch.bool)
        while len(self) < self.most and bool(fresh.any()):
            found = self._candidates(fresh)
            fresh = torch.zeros_like(fresh)
            for _, row, image, label in sorted(found, key=lambda each: each[0]):
                if len(self) < self.most and self._still_shows(row, image):
                    fresh |= self.take(image, label)
        self.settle()

    def _candidates(self, fresh: Tensor) -> list[tuple[float, int, Tensor, int]]:
        """Return rows whose quotient is an image that has the error seen, with gaps and labels."""
        weights = self.rows[:, -1]
        least = 1e-3 * float(self.rows[:, -1].abs().max()) + 30 * self.noise
        places = (fresh & (weights.abs() > least)).nonzero()[:, 0]
        low, high = self.readout.low, self.readout.high
        slack = 20 * self.tolerance * float((high - low).max())
        found = list[tuple[float, int, Tensor, int]]()
        for some in torch.split(places, CHUNK):
            images = self.rows[some] / weights[some, None]
            inside = ((images[:, :-1] >= low - slack) & (images[:, :-1] <= high + slack)).all(dim=1)
            some, images = some[inside], images[inside]
            if not len(some):
                continue
            predicted = self._predicted(images, some)  # (n, classes)
            seen = weights[some, None]
            gaps, labels = ((predicted - seen).abs() / seen.abs()).min(dim=1)
            found += [
                (float(gap), int(row), image, int(label))
                for gap, row, image, label in zip(gaps, some, images, labels, strict=True)
                if gap < self.tolerance
            ]
        return found

    def _errors(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return outputs, which units fire, and errors for every label if they did (n, units, classes)."""
        outputs = images @ torch.cat([self.readout.weight, self.readout.bias[:, None]], dim=1).T
        own, slopes = self.readout.behind.slopes(outputs)
        chances = self.readout.behind.logits(outputs).softmax(dim=1)
        given = (slopes @ chances[:, :, None] - slopes) / self.size
        return outputs, own, given

    def _predicted(self, images: Tensor, rows: Tensor) -> Tensor:
        """Return the error at its row that each image would have, for every label (n, classes)."""
        _, own, given = self._errors(images)
        here = torch.arange(len(images))
        errors = own[here, rows, None] * given[here, rows]
        higher = self.above[rows]
        has = (higher >= 0).to(errors)[:, None]
        return errors - has * own[here, higher, None] * given[here, higher]

    def _still_shows(self, row: int, image: Tensor) -> bool:
        """Say whether a row is as it was when its image was read, and the image is new."""
        now = self.rows[row]
        same = (now / now[-1] - image).norm() < SAME * image.norm() if now[-1] else torch.tensor(False)
        known = (self.inputs - image).norm(dim=1) if len(self) else image.new_tensor([torch.inf])
        return bool(same) and float(known.min()) > SAME * float(image.norm())

    def take(self, image: Tensor, label: int) -> Tensor:
        """Keep an image [x | 1] and subtract it; return the rows that changed."""
        _, own, given = self._errors(image[None])
        errors = self.binned(own[0] * given[0, :, label])
        self.rows -= errors[:, None] * image
        self.inputs = torch.cat([self.inputs, image[None]])
        self.errors = torch.cat([self.errors, errors[None]])
        self.labels = torch.cat([self.labels, torch.tensor([label])])
        changed: Tensor = errors != 0
        return changed

    def settle(self) -> None:
        """Let units at whose threshold an image lies fire or not, whichever leaves less in the rows."""
        for some in torch.split(torch.arange(len(self)), CHUNK):
            outputs, own, given = self._errors(self.inputs[some])
            near = outputs.abs() < NEAR_KINK * outputs.abs().mean()
            for place, unit in near.nonzero().tolist():
                number = int(some[place])
                turned = torch.zeros(len(self.readout.gradient), dtype=torch.float64)
                turned[unit] = (1 - 2 * own[place, unit]) * given[place, unit, self.labels[number]]
                change = self.binned(turned)
                rows = change.nonzero()[:, 0]
                left = self.rows[rows] - change[rows, None] * self.inputs[number]
                if float(left.norm()) < float(self.rows[rows].norm()):
                    self.rows[rows] = left
                    self.errors[number] += change

    def certified(self) -> Tensor:
        """Say which images explain more rows than the one they were read off, and leave nothing in them."""
        left = self.rows.norm(dim=1)
        shares = self.errors.abs() * self.inputs.norm(dim=1, keepdim=True)  # (found, rows)
        counted = shares > 30 * self.noise * self.inputs.shape[1] ** 0.5
        # Rounding of a row is that of the sum it was computed as, before neighbours were subtracted.
        floor = 100 * self.noise * self.inputs.shape[1] ** 0.5
        clean = left[None] < torch.maximum(self.tolerance * shares, torch.tensor(floor))
        found: Tensor = (counted & clean).sum(dim=1) >= REDUNDANT
        return found

    def drop(self, keep: Tensor) -> None:
        """Put the images that are not kept back into the rows."""
        out = ~keep
        self.rows += self.errors[out].T @ self.inputs[out]
        self.inputs, self.errors, self.labels = self.inputs[keep], self.errors[keep], self.labels[keep]

    @property
    def unexplained(self) -> float:
        """The share of the rows that no found image explains."""
        return float(self.rows.norm() / self.binned(self.readout.gradient).norm())


def next_above(readout: Readout) -> Tensor:
    """Return for each unit the one with its row, its errors and the next higher threshold; -1: none."""
    weight = readout.behind.steps[0][1]
    alike = torch.unique(torch.cat([readout.weight, weight.T], dim=1), dim=0, return_inverse=True)[1]
    order = torch.argsort(-readout.bias, stable=True)
    order = order[torch.argsort(alike[order], stable=True)]
    above = torch.full((len(order),), -1)
    same = alike[order[1:]] == alike[order[:-1]]
    above[order[:-1][same]] = order[1:][same]
    return above
