"""A straight line to chosen weights, and data made so that each step seems to lead along it.

What it gains: a proof of stolen weights without training: images are changed until their gradient is the step
    that was wanted, or vanishes where steps are shorter than delta.
Paper: Zhang et al., "Adversarial Examples" for Proof-of-Learning (S&P 2022), attacks I and II.
Assumes: a wide delta, and data chosen after the checkpoints.
Caught by: a tight delta: whole grey levels do not meet a gradient to rounding; data committed to before.
"""

import torch
from torch.nn import functional

from fedsim.attacks.integrity.spoofing.fabricate import claimed, moved, wanted
from fedsim.core.interfaces import Behaviour
from fedsim.core.settings import number, whole
from fedsim.core.training import Batch, Claim, LocalWork, load_weights
from fedsim.core.types import Weights


class AdversarialData(Behaviour):
    """Goes straight to the weights that it wants, on images fitted to each step."""

    def __init__(self, *, iterations: int = 5, strength: float = 1.0) -> None:
        """Set how long a step's images are fitted, and how far a poisoned model lies (in rounds' updates)."""
        self.iterations = whole("client.adversarial_data.iterations", iterations)
        self.strength = number("client.adversarial_data.strength", strength, above=0)

    def train(self, work: LocalWork) -> Claim:
        """Draw the line, and make up its data."""
        target = wanted(work, self.strength)
        way = [moved(work.sent, target, step / work.steps) for step in range(work.steps + 1)]
        shown = [
            self._fitted(work, way[step], way[step + 1], batch)
            for step, batch in enumerate(work.own_batches())
        ]
        return claimed(work, way, shown)

    def _fitted(self, work: LocalWork, before: Weights, after: Weights, batch: Batch) -> Batch:
        """Return the batch with pixels moved so that its step leads nearer to where it should."""
        load_weights(work.model, before)
        names, parameters = zip(*work.model.named_parameters(), strict=True)
        wanted_step = [(before[name] - after[name]) / work.learning_rate for name in names]
        images = batch.images.clone()
        for iteration in range(self.iterations):
            pixels = images.clone().requires_grad_()
            loss = functional.cross_entropy(work.model(pixels), batch.labels)
            slopes = torch.autograd.grad(loss, parameters, create_graph=True, materialize_grads=True)
            gap = sum(((mine - theirs) ** 2).sum() for mine, theirs in zip(slopes, wanted_step, strict=True))
            assert isinstance(gap, torch.Tensor)
            (direction,) = torch.autograd.grad(gap, pixels)
            size = max(1, 16 >> iteration)  # grey levels
            images = torch.round((images - size / 255 * direction.sign()).clamp(0, 1) * 255) / 255
        return Batch(images=images.detach(), labels=batch.labels)
