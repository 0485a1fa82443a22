"""How well a guess tells the brightness of a batch: the least that an image can give away."""

from fedsim import Metric, Reconstruction, Score, Truth


class Brightness(Metric):
    """Distance of the mean pixel from the batch's own; 0 is right. Its baseline comes of itself."""

    highest = False

    def score(self, guess: Reconstruction, truth: Truth) -> Score | None:
        """Score the images' mean."""
        if guess.images is None:
            return None
        return Score(metric="brightness", value=abs(float(guess.images.mean() - truth.images.mean())))
