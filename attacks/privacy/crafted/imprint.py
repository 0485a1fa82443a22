"""Single images from bins of one direction: neighbouring units differ by what lies between their thresholds.

What leaks: the images of the batch and their labels, exactly.
Paper: Fowl et al., Robbing the Fed: Directly Obtaining Private Data in Federated Learning with Modified
    Models (ICLR 2022). There a layer is put in front of the model and bins of several images are lost;
    here the model keeps its form, and such bins are solved.
Assumes: the server chose the weights; a linear layer with ReLUs behind it; the gradient of one step.
Fails: for images of one label that are equally bright to 1 / units; with as many images as units.

Units take turns in `levels` columns of errors: an image leaves a different error in each of the bins it
is in, so that the columns of what is left tell several images of a bin apart by their labels
(leftover.py). With more `directions` a bin's images meet others elsewhere, and peeling finds nearly all
while there are at most four images for five units.
"""

import torch
from torch import Tensor

from fedsim.attacks.privacy.crafted.crafted import Crafted
from fedsim.attacks.privacy.crafted.readout import Plan
from fedsim.core import settings
from fedsim.core.types import PublicImages


class Imprint(Crafted):
    """Bins of one direction, a bright one or random ones, by quantiles of public or made-up images."""

    def __init__(
        self,
        *,
        public: PublicImages | None = None,
        directions: int = 1,
        levels: int = 3,
        every: int = 1,
        tolerance: float = 1e-3,
        seed: int = 0,
    ) -> None:
        """Set how many directions there are (one: brightness), and columns of errors for each of them."""
        super().__init__(public=public, every=every, tolerance=tolerance, seed=seed)
        self.directions = settings.whole("attack.directions", directions)
        self.levels = settings.whole("attack.levels", levels)

    def plan(self, inputs: Tensor, units: int, random: torch.Generator) -> Plan:
        """Return units in turns of directions and levels, thresholds rising."""
        return binned(inputs, units, self.directions, self.levels, random)


def binned(inputs: Tensor, units: int, directions: int, levels: int, random: torch.Generator) -> Plan:
    """Return units in turns of directions and levels, with thresholds at quantiles of these inputs."""
    size = inputs.shape[1]
    rows = torch.randn(directions, size, generator=random, dtype=torch.float64)
    if directions == 1:
        rows = torch.ones(1, size, dtype=torch.float64)
    rows = rows / rows.norm(dim=1, keepdim=True)
    turn = torch.arange(units) % directions
    thresholds = torch.empty(units, dtype=torch.float64)
    for direction in range(directions):
        own = turn == direction
        shares = (torch.arange(int(own.sum()), dtype=torch.float64) + 0.5) / int(own.sum())
        thresholds[own] = torch.quantile(inputs.double() @ rows[direction], shares)
    return Plan(rows=rows[turn], thresholds=thresholds, levels=(torch.arange(units) // directions) % levels)
