"""A batch composed beforehand, so that exchanging its labels changes nothing: x1 + x2 = x3 + x4.

What it gains: an update that is exactly that of other labels, in whole grey levels and one class each.
Paper: none; an answer to a question that Suliman et al., Towards a Re-evaluation of Data Forging Attacks in
    Practice (2024), leave open. Labels a, a, b, b enter the gradient through sums of activations alone; these
    are equal in softmax regression, and in ReLU and max-pooling networks as far as the four images lie
    in one linear region.
Assumes: the adversary trains on a batch of its own making. A verifier who chooses the batch is not fooled.
Caught by: near duplicates in a batch that have different labels.
"""

import copy

import torch
from torch import Tensor, nn

from fedsim.attacks.integrity.forging.replacement import gap
from fedsim.core.challenges import Challenge
from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Forgery
from fedsim.core.settings import whole
from fedsim.core.training import Batch, batch_gradient

EXACT = 1e-26  # of the gradient's squared length: nothing but rounding in float64


class Parallelogram(Forgery):
    """Fours of one image and three that differ from it in one or two pixels by a grey level."""

    pixels = "uint8"

    def __init__(self, *, tries: int = 60) -> None:
        """Set how many pairs of pixels to try for each four, until it lies in one linear region."""
        self.tries = whole("forgery.tries", tries)

    def compose(self, challenge: Challenge) -> Batch:
        """Put fours in the place of the unwanted examples."""
        images, labels = challenge.batch.images.clone(), challenge.batch.labels.clone()
        exact = copy.deepcopy(challenge.model).double()
        for places in fours(challenge):
            own, other = int(labels[places[0]]), int(labels[places[2]])
            if own == other:
                other = (own + 1) % challenge.task.num_classes
            images[places] = self._four(challenge, exact, images[places[0]], own, other)
            labels[places] = torch.tensor([own, own, other, other])
        return Batch(images=images, labels=labels)

    def forge(self, challenge: Challenge) -> Batch:
        """Exchange the labels of every four."""
        labels = challenge.batch.labels.clone()
        for places in fours(challenge):
            labels[places] = labels[places.flip(0)]
        return Batch(images=challenge.batch.images, labels=labels)

    def _four(self, challenge: Challenge, exact: nn.Module, image: Tensor, own: int, other: int) -> Tensor:
        """Return the four around an image whose labels can be exchanged with the least change."""
        levels = torch.round(image * 255).to(torch.int64)
        best, smallest = torch.stack([image] * 4), float("inf")
        for _ in range(self.tries):
            pair = torch.randperm(levels.numel(), generator=challenge.generator)[:2]
            if len(pair) < 2:
                raise FedsimError("forgery=[parallelogram]: expected images of at least two pixels, got one")
            step = torch.where(levels.flatten()[pair] < 255, 1, -1)
            moved = levels.flatten().repeat(4, 1)  # x, x + u + v, x + u, x + v
            moved[1, pair] += step
            moved[2, pair[0]] += step[0]
            moved[3, pair[1]] += step[1]
            four = moved.view(4, *image.shape).to(image.dtype).div(255)
            change, size = _change(exact, moved.view(4, *image.shape).double() / 255, own, other)
            if change < smallest:
                best, smallest = four, change
            if change <= EXACT * size:
                break
        return best


def fours(challenge: Challenge) -> list[Tensor]:
    """Return the places of each four: the unwanted examples, filled up with the next ones of the batch."""
    unwanted = challenge.unwanted.tolist()
    rest = [place for place in range(len(challenge.batch.labels)) if place not in set(unwanted)]
    places = unwanted + rest[: -len(unwanted) % 4]
    if len(places) < 4:
        raise FedsimError("forgery=[parallelogram]: expected a batch of at least 4. Remedy: a larger batch.")
    return [torch.tensor(places[start : start + 4]) for start in range(0, len(places) - 3, 4)]


def _change(exact: nn.Module, four: Tensor, own: int, other: int) -> tuple[float, float]:
    """Return how much a four's gradient changes when labels are exchanged, and its length; both squared."""
    labels = torch.tensor([own, own, other, other])
    before, _ = batch_gradient(exact, four, labels)
    after, _ = batch_gradient(exact, four, labels.flip(0))
    return gap(before, after), sum(float(tensor.square().sum()) for tensor in before.values())
