"""No work at all: an invented example that the model is sure of, whose true steps are too short to be seen.

What it gains: a round's work, with every step recomputed and found true.
Paper: none; Zhang et al., "Adversarial Examples" for Proof-of-Learning (S&P 2022) make steps vanish, too.
Assumes: the client may show any grey levels, one image many times, chosen after it saw the weights.
Caught by: data that was committed to before; copies in a batch; intervals too short to tell work from none.
"""

import torch
from torch import Tensor
from torch.nn import functional

from fedsim.attacks.integrity.spoofing.fabricate import claimed
from fedsim.core.interfaces import Behaviour
from fedsim.core.settings import whole
from fedsim.core.training import Batch, Claim, LocalWork, load_weights


class Idle(Behaviour):
    """Sends back what it got, and shows a batch of one image for every step."""

    def __init__(self, *, iterations: int = 40) -> None:
        """Set how long it looks for an image that the model is sure of."""
        self.iterations = whole("client.idle.iterations", iterations)

    def train(self, work: LocalWork) -> Claim:
        """Look for an image, and do nothing."""
        load_weights(work.model, work.sent)
        shown = sure_batch(work, self.iterations)
        return claimed(work, [dict(work.sent)] * (work.steps + 1), [shown] * work.steps)


def sure_batch(work: LocalWork, iterations: int) -> Batch:
    """Return copies of the image, of those that own ones are turned into, that the model is surest of."""
    own = work.batch(work.indices(0))
    images, labels = own.images.clone(), work.model(own.images).argmax(dim=1).detach()
    for step in range(iterations):
        pixels = images.clone().requires_grad_()
        loss = functional.cross_entropy(work.model(pixels), labels)
        (slope,) = torch.autograd.grad(loss, pixels)
        size = max(1, round(32 * (1 - step / iterations)))  # grey levels
        images = _levels(images - size / 255 * slope.sign())
    losses = functional.cross_entropy(work.model(images), labels, reduction="none")
    best, number = int(losses.argmin()), len(labels)
    return Batch(images=images[best : best + 1].repeat(number, 1, 1, 1), labels=labels[best].repeat(number))


def _levels(images: Tensor) -> Tensor:
    return torch.round(images.clamp(0, 1) * 255) / 255
