"""A grey level more or less in one pixel of each image, where the model does not look.

What it gains: other examples to the letter, with an update that is nearly or exactly the same: a ReLU that is
    off and a pooling that chose another pixel do not see the change.
Paper: none; the smallest answer to the letter of the game of Suliman et al., Towards a Re-evaluation of Data
    Forging Attacks in Practice (2024), and the yardstick of what its rule of distinctness is worth.
Assumes: that a batch is another one if a pixel is.
Caught by: comparing claimed images with the one in question: they are near copies.
"""

import copy

import torch
from torch import Tensor, nn

from fedsim.attacks.integrity.forging.replacement import flat_gradient, targets
from fedsim.core.challenges import Challenge
from fedsim.core.interfaces import Forgery
from fedsim.core.settings import whole
from fedsim.core.training import Batch, batch_gradient, exact_levels


class OneLevel(Forgery):
    """Of some pixels of each unwanted image, the one whose grey level changes the gradient least."""

    pixels = "uint8"

    def __init__(self, *, tries: int = 20) -> None:
        """Set how many pixels of each image to try; each costs the gradient of one example."""
        self.tries = whole("forgery.tries", tries)

    def forge(self, challenge: Challenge) -> Batch:
        """Change a level in each unwanted image."""
        exact, images = copy.deepcopy(challenge.model).double(), challenge.batch.images.clone()
        for place in targets(challenge).tolist():
            label = challenge.batch.labels[place : place + 1]
            images[place] = self._changed(challenge, exact, images[place], label)
        return Batch(images=images, labels=challenge.batch.labels)

    def _changed(self, challenge: Challenge, exact: nn.Module, image: Tensor, label: Tensor) -> Tensor:
        levels = torch.round(image * 255).to(torch.int64)
        before = _gradient(exact, image, label)
        best, smallest = image, float("inf")
        for pixel in torch.randperm(levels.numel(), generator=challenge.generator)[: self.tries].tolist():
            moved = levels.flatten().clone()
            moved[pixel] += 1 if moved[pixel] < 255 else -1
            other = (moved.view_as(levels).double() / 255).to(image.dtype)
            change = float((_gradient(exact, other, label) - before).norm())
            if change < smallest:
                best, smallest = other, change
            if change == 0:
                break
        return best


def _gradient(exact: nn.Module, image: Tensor, label: Tensor) -> Tensor:
    return flat_gradient(batch_gradient(exact, exact_levels(image[None]), label)[0])
