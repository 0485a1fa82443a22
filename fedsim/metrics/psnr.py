"""Peak signal-to-noise ratio of reconstructed images."""

from fedsim.core.interfaces import Metric
from fedsim.core.types import Reconstruction, Score, Truth
from fedsim.metrics.image_matching import image_score, peak_signal_to_noise


class PSNR(Metric):
    """Peak signal-to-noise ratio in dB, images optimally matched; higher is a better reconstruction."""

    title = "likeness of images"
    unit = "dB, PSNR"

    def __init__(self, *, best: int | None = None) -> None:
        """Take all images, or those that come out best."""
        self.best = best

    def score(self, guess: Reconstruction, truth: Truth) -> Score | None:
        """Score the images."""
        return image_score("psnr", peak_signal_to_noise, guess, truth, best=self.best)
