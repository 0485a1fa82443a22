"""Structural similarity of reconstructed images, by torchmetrics.

Paper: Wang et al., Image Quality Assessment: From Error Visibility to Structural Similarity (2004).
"""

from torch import Tensor

from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Metric
from fedsim.core.types import Reconstruction, Score, Truth
from fedsim.core.vision import load_torchvision
from fedsim.metrics.image_matching import image_score


class SSIM(Metric):
    """Structural similarity, images optimally matched; 1 is equal."""

    bounded = True
    title = "structural similarity of images"
    unit = "SSIM"
    paper = "Wang et al., Image Quality Assessment: From Error Visibility to Structural Similarity (2004)"

    def __init__(self, *, best: int | None = None) -> None:
        """Take all images, or those that come out best."""
        self.best = best

    def score(self, guess: Reconstruction, truth: Truth) -> Score | None:
        """Score the images."""
        return image_score("ssim", structural_similarity, guess, truth, best=self.best)


def structural_similarity(guess: Tensor, truth: Tensor) -> Tensor:
    """Return the SSIM of each pair of images in [0, 1] (11x11 Gaussian window, deviation 1.5)."""
    load_torchvision()
    from torchmetrics.functional.image import structural_similarity_index_measure

    if min(truth.shape[2:]) < 6:
        raise FedsimError(
            f"ssim: expected images of at least 6 pixels a side, got {tuple(truth.shape[2:])}. "
            "Remedy: leave ssim out of metric=[...]."
        )
    values = structural_similarity_index_measure(
        guess.double(), truth.double(), data_range=1.0, reduction="none"
    )
    assert isinstance(values, Tensor)
    return values.reshape(len(truth))
