"""Share of the batch that an attack restored, by the truth alone: the figure of papers on chosen weights."""

import torch

from fedsim.core.interfaces import Metric
from fedsim.core.types import Reconstruction, Score, Truth
from fedsim.metrics.image_error import relative_error

NEAR = 0.01  # relative error up to which an image counts as recovered


class Recovered(Metric):
    """Share of the images that a guess shows within 1 %; each guess counts once, and the surplus costs."""

    title = "images recovered"
    unit = "share of images"
    bounded = True

    def score(self, guess: Reconstruction, truth: Truth) -> Score | None:
        """Count true images that are among the guesses."""
        if guess.images is None or guess.images.shape[1:] != truth.images.shape[1:]:
            return None
        free = torch.ones(len(guess.images), dtype=torch.bool)
        hits = list[float]()
        for true in truth.images:
            near = free & (relative_error(guess.images, true.expand_as(guess.images)) <= NEAR)
            hits.append(float(near.any()))
            if hits[-1]:
                free[int(near.nonzero()[0, 0])] = False
        asked = max(len(truth.images), len(guess.images))  # a thousand shots in the dark hit nothing
        return Score(metric="recovered", value=sum(hits) / asked, per_example=tuple(hits))
