"""Learned perceptual distance of reconstructed images: the `lpips` package with AlexNet's real weights.

Paper: Zhang et al., The Unreasonable Effectiveness of Deep Features as a Perceptual Metric (CVPR 2018).
"""

import functools
import warnings
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

from fedsim.core.interfaces import Metric
from fedsim.core.types import Reconstruction, Score, Truth
from fedsim.core.vision import load_torchvision
from fedsim.data.images import ASSETS
from fedsim.metrics.image_matching import image_score

ALEXNET_MINIMUM = 31  # pixels
ENLARGED = 64


class LPIPS(Metric):
    """Learned perceptual distance (AlexNet), images optimally matched; 0 is equal.

    Grey images are repeated to three channels; images of fewer than 31 pixels a side, which AlexNet's
    poolings cannot take, are enlarged to 64 bilinearly; [0, 1] is mapped to [-1, 1] as LPIPS expects.
    """

    highest = False
    title = "perceptual distance of images"
    unit = "LPIPS"
    paper = "Zhang et al., The Unreasonable Effectiveness of Deep Features as a Perceptual Metric (CVPR 2018)"

    def __init__(self, *, best: int | None = None) -> None:
        """Take all images, or those that come out best."""
        self.best = best

    def score(self, guess: Reconstruction, truth: Truth) -> Score | None:
        """Score the images."""
        return image_score("lpips", perceptual_distance, guess, truth, best=self.best, highest=False)


def perceptual_distance(guess: Tensor, truth: Tensor) -> Tensor:
    """Return the LPIPS distance of each pair of images in [0, 1]."""
    with torch.no_grad():
        distances: Tensor = lpips_network()(prepared_for_lpips(guess), prepared_for_lpips(truth))
    return distances.reshape(len(truth))


def prepared_for_lpips(images: Tensor) -> Tensor:
    """Return images in [0, 1] as the network takes them: three channels in [-1, 1], no side too small."""
    images = images.float()
    if min(images.shape[2:]) < ALEXNET_MINIMUM:
        images = functional.interpolate(images, size=(ENLARGED, ENLARGED), mode="bilinear")
    return images.expand(-1, 3, -1, -1) * 2 - 1


@functools.cache
def lpips_network() -> Any:
    """Return LPIPS with the package's heads and the embedded ImageNet trunk."""
    load_torchvision()
    from lpips import LPIPS as Network

    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")  # torchvision's deprecated spelling inside lpips
        network = Network(net="alex", pnet_rand=True, verbose=False).eval()
    convolutions = {  # features.0.weight -> slice1.0.weight: the trunk cuts AlexNet after each ReLU
        f"slice{number}.{place}.{kind}": f"features.{place}.{kind}"
        for number, place in enumerate((0, 3, 6, 8, 10), start=1)
        for kind in ("weight", "bias")
    }
    stored = load_file(ASSETS / "alexnet_features.safetensors")
    network.net.load_state_dict({ours: stored[theirs] for ours, theirs in convolutions.items()})
    return network.requires_grad_(False)
