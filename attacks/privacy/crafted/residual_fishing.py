"""Images of one class out of a large batch, exactly, through a residual network.

What leaks: the images of the target class that are alone between two thresholds of mean brightness.
Paper: none; Wen et al., Fishing for User Data in Large-Batch Federated Learning (ICML 2022) has the class,
    Fowl et al., Robbing the Fed (ICLR 2022) the bins. Both leave residual networks to gradient matching.
Assumes: the server chose the weights of a ResNet-18 for small square images (sides of 8, 16, 24 or 32); batch
    norm on running statistics; the gradient of one step.
Fails: where images of the class share every bin; batch norm on the batch's statistics; other networks.

Pooling averages all places, so a readout must know where it is. Zero padding tells: a channel that is one
everywhere, moved on by a convolution, is zero at the edge. Strided convolutions move pixels into channels, so
all of an image arrives at the last block, some channels at each of 4 x 4 places. There each unit fires at one
place, for images brighter than its threshold: its weights' gradient is the sum of these images at that place.
"""

import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedsim.attacks.privacy import claims
from fedsim.attacks.privacy.crafted.crafted import Crafted
from fedsim.attacks.privacy.crafted.fishing import LOW
from fedsim.attacks.privacy.crafted.readout import images_of
from fedsim.attacks.privacy.crafted.residual_weights import PATH, UNIT, Layout, layout_of, residual_weights
from fedsim.core import settings
from fedsim.core.errors import FedsimError
from fedsim.core.types import Observation, PublicImages, Reconstruction, Task, Weights

ROUNDED, SURE = 0.02, 1e-3  # how far a number of images may be from a whole one: found, certified


class ResidualFishing(Crafted):
    """Bins of brightness at every place of the last feature map, for images of one class."""

    def __init__(
        self, *, public: PublicImages | None = None, target: int = 0, every: int = 1, seed: int = 0
    ) -> None:
        """Set the images that thresholds follow, and the first target class; the next round has the next."""
        super().__init__(public=public, every=every, seed=seed)
        self.target = settings.whole("attack.target", target, 0)

    def check(self, model: nn.Module, task: Task) -> None:
        """Refuse a model that the weights are not made for."""
        layout_of(model, task)
        if self.target >= task.num_classes:
            raise FedsimError(f"attack.target: expected below {task.num_classes}, got {self.target}")

    def craft(self, model: nn.Module, task: Task, round: int, weights: Weights) -> Weights:
        """Send the bins, and a last layer in which the target class alone has a loss."""
        self.check(model, task)
        layout = layout_of(model, task)
        brightness = images_of(task, self.public, self.seed).double().flatten(1).mean(dim=1)
        shares = torch.arange(layout.bins, dtype=torch.float64) / layout.bins
        thresholds = torch.quantile(brightness, shares)
        thresholds[0] = -1.0  # below all of them
        target = (self.target + round - 1) % task.num_classes
        return residual_weights(model, task, weights, layout, thresholds, target, LOW)

    def run(self, model: nn.Module, task: Task, observations: Sequence[Observation]) -> Reconstruction:
        """Read off the images that are alone in their bin, as each place counts them."""
        started, observation = time.perf_counter(), observations[-1]
        steps, _ = claims.local_training(claims.checked(observation))
        if steps > 1:
            raise FedsimError(
                f"residual_fishing: expected one local step, got {steps}. Remedy: federation=fedsgd."
            )
        layout, size = layout_of(model, task), self._examples(observation)
        claims.expect_images(size, task)
        each = -UNIT / layout.places / size / claims.gradient_factor(observation)  # what one image leaves
        bias, rows = read_bins(observation.received, layout)
        counts, pieces = bias / each, rows / each
        off = (counts - 1).abs().amax(dim=0)
        alone = off <= ROUNDED
        if not bool(alone.any()):
            raise FedsimError(
                "no image is alone in its bin. Remedy: rounds that this attack crafted, attack.public, "
                "smaller batches, weaker defenses, or another attack.target."
            )
        images = layout.images(pieces[:, alone].transpose(0, 1))
        inside = ((images >= -SURE) & (images <= 1 + SURE)).flatten(1).all(dim=1)
        target = (self.target + observation.round - 1) % task.num_classes
        return Reconstruction(
            images=images.clamp(0, 1).float(),
            labels=torch.full((len(images),), target),
            certified=inside & (off[alone] <= SURE),  # every place has counted one
            seconds=time.perf_counter() - started,
        )


def read_bins(gradient: Weights, layout: Layout) -> tuple[Tensor, Tensor]:
    """Return, for each place and bin, the gradient of the bias and of the weights that pixels come by."""
    last = f"{PATH}layer4.1."
    units, bins = layout.units, layout.bins
    bias = gradient[f"{last}bn2.bias"][units].double().view(layout.places, bins)
    rows = gradient[f"{last}conv2.weight"][units, : layout.pixels, 1, 1].double()
    rows = rows.view(layout.places, bins, layout.pixels)
    # A unit fires for all images that are brighter than its threshold: the next one's are taken away.
    above = torch.cat([bias[:, 1:], torch.zeros_like(bias[:, :1])], dim=1)
    beyond = torch.cat([rows[:, 1:], torch.zeros_like(rows[:, :1])], dim=1)
    return bias - above, rows - beyond
