"""Another error for each example, and images to go with it: other images, other labels, the same gradient.

What it gains: a batch that shares neither images nor labels with the one that was used.
Paper: Suliman et al., Towards a Re-evaluation of Data Forging Attacks in Practice (2024), proposition 3.
Assumes: softmax regression, at least as many examples as classes, a verifier who takes any real pixels
    and labels.
Caught by: looking at the labels: they are not classes.
"""

import copy

import torch

from fedsim.attacks.integrity.forging.first_layer import first_layer
from fedsim.attacks.privacy import least_squares
from fedsim.core.challenges import Challenge
from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Forgery
from fedsim.core.settings import number
from fedsim.core.training import Batch, exact_levels


class ErrorMatrix(Forgery):
    """Draws errors D, solves X D = b G for the images nearest to others at hand, and reads off the labels."""

    pixels = "real"
    classes = False

    def __init__(self, *, size: float = 0.5) -> None:
        """Set the deviation of the errors that are drawn."""
        self.size = number("forgery.size", size, above=0)

    def forge(self, challenge: Challenge) -> Batch:
        """Draw errors whose rows sum to 0, then images and labels that have them."""
        batch, model = challenge.batch, copy.deepcopy(challenge.model).double()
        layer = first_layer(model, batch)
        number, classes = len(batch.labels), challenge.task.num_classes
        if not layer.only or number < classes:
            depth = "one linear layer" if layer.only else "a deeper model"
            raise FedsimError(
                f"forgery=[error_matrix]: expected one linear layer and at least {classes} examples, got "
                f"{depth} and {number}. Remedy: model=softmax, a larger batch."
            )
        errors = self.size * torch.randn(number, classes, generator=challenge.generator, dtype=torch.float64)
        errors -= errors.mean(dim=1, keepdim=True)
        # Both X D and the sums of D are in the gradient, of weight and of bias: keep the sums too.
        errors += (layer.errors.sum(dim=0) - errors.sum(dim=0)) / number
        pixels = exact_levels(batch.images).flatten(1)
        start = pixels.flip(0)  # other images to stay near: those at hand, or the batch's own
        if len(challenge.owned) >= number:
            start = challenge.examples(challenge.owned[:number]).images.double().flatten(1)
        # X' = start + C with D^T C = D0^T X0 - D^T start, and C as short as can be.
        images = start + least_squares.fit(errors.T, layer.errors.T @ pixels - errors.T @ start)
        with torch.no_grad():
            logits = model(images.view_as(batch.images))
        labels = logits.softmax(dim=1) - errors
        kind = batch.images.dtype
        return Batch(images=images.view_as(batch.images).to(kind), labels=labels.to(kind))
