"""How well a guess tells the brightness of a batch: the least that an image can give away."""

from fedsim import Metric, Reconstruction, Score, Truth


class Brightness(Metric):
    """Distance of the mean pixel from the batch's own; 0 is right, and grey is the baseline."""

    def score(self, guess: Reconstruction, truth: Truth) -> Score | None:
        """Score the images' mean."""
        if guess.images is None:
            return None
        true = float(truth.images.mean())
        return Score(
            metric="brightness", value=abs(float(guess.images.mean()) - true), baseline=abs(0.5 - true)
        )
