"""A client trains on mixtures of its images, not on the images.

Paper: Zhang et al., mixup: Beyond Empirical Risk Minimization (ICLR 2018); as a defense in Huang et al.,
    Evaluating Gradient Inversion Attacks and Defenses in Federated Learning (NeurIPS 2021).
"""

import numpy as np
import torch
from torch import Generator, Tensor
from torch.nn import functional

from fedsim.core.interfaces import Defense
from fedsim.core.settings import number


class Mixup(Defense):
    """Adds to every image and label those of another example of the batch, with random shares."""

    def __init__(self, *, alpha: float = 1.0) -> None:
        """Set the Beta(alpha, alpha) distribution of shares: small values mix little."""
        self.alpha = number("defense.mixup.alpha", alpha, above=0)

    def on_batch(self, images: Tensor, labels: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        """Mix the batch; labels become shares of classes."""
        order = torch.randperm(len(images), generator=generator)
        seed = int(torch.randint(2**31, (), generator=generator))
        shares = np.random.default_rng(seed).beta(self.alpha, self.alpha, len(images))
        share = torch.from_numpy(shares).to(images.dtype)
        if labels.ndim == 1:
            labels = functional.one_hot(labels).to(images.dtype)
        mixed = share.view(-1, 1, 1, 1)
        images = mixed * images + (1 - mixed) * images[order]
        return images, share[:, None] * labels + (1 - share[:, None]) * labels[order]
