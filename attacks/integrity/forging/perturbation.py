"""Images moved where the first layer does not look, so that errors, activations and gradients stay.

What it gains: infinitely many batches with exactly the same update, none of them the one that was used.
Paper: Suliman et al., Towards a Re-evaluation of Data Forging Attacks in Practice (2024), proposition 2,
    who solve a linear system of all pixels; the projections below are its solution in closed form.
Assumes: a fully connected network, more examples than the rank of its first layer's errors, and a verifier
    who takes any real pixels.
Caught by: looking at the pixels: they leave [0, 1].
"""

import torch

from fedsim.attacks.integrity.forging.first_layer import basis, first_layer
from fedsim.core.challenges import Challenge
from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Forgery
from fedsim.core.settings import number
from fedsim.core.training import Batch


class Perturbation(Forgery):
    """X + (I - Q_W Q_W^T) F (I - Q_D Q_D^T): noise that the first layer neither sees nor learns from."""

    pixels = "real"

    def __init__(self, *, size: float = 0.1) -> None:
        """Set the deviation of the noise F, in units of the brightest pixel."""
        self.size = number("forgery.size", size, above=0)

    def forge(self, challenge: Challenge) -> Batch:
        """Add projected noise to all images."""
        batch = challenge.batch
        layer = first_layer(challenge.model, batch)
        noise = self.size * torch.randn(
            layer.weight.shape[1], len(batch.labels), generator=challenge.generator, dtype=torch.float64
        )
        images = batch.images.double() + invisible(noise, layer.free_weight.T, layer.errors).T.view_as(
            batch.images
        )
        return Batch(images=images.to(batch.images.dtype), labels=batch.labels)


def invisible(noise: torch.Tensor, weight: torch.Tensor, errors: torch.Tensor) -> torch.Tensor:
    """Return the part P of noise (pixels, batch) with weight^T P = 0 and P errors = 0."""
    of_weight, of_errors = basis(weight), basis(errors)
    if of_weight.shape[1] >= len(weight) or of_errors.shape[1] >= len(errors):
        raise FedsimError(
            f"forgery: a first layer of rank {of_weight.shape[1]} on {len(weight)} pixels and errors of rank "
            f"{of_errors.shape[1]} on {len(errors)} examples leave no freedom. "
            "Remedy: a larger batch, or fewer units in the first layer."
        )
    noise = noise - of_weight @ (of_weight.T @ noise)
    return noise - (noise @ of_errors) @ of_errors.T
