"""Relative error of reconstructed images: the figure that error bounds speak of."""

from torch import Tensor

from fedsim.core.interfaces import Metric
from fedsim.core.types import Reconstruction, Score, Truth
from fedsim.metrics.image_matching import image_score


class ImageError(Metric):
    """Norm of the difference over the norm of the true image, images optimally matched; 0 is equal."""

    highest = False
    title = "error of images"
    unit = "relative error"

    def score(self, guess: Reconstruction, truth: Truth) -> Score | None:
        """Score the images."""
        return image_score("image_error", relative_error, guess, truth, highest=False)


def relative_error(guess: Tensor, truth: Tensor) -> Tensor:
    """Return the relative error of each pair of images."""
    gaps = (guess.double() - truth.double()).flatten(1).norm(dim=1)
    floor = 0.01 * truth[0].numel() ** 0.5  # of a black image: a grey level of one in a hundred
    errors: Tensor = gaps / truth.double().flatten(1).norm(dim=1).clamp(min=floor)
    return errors
