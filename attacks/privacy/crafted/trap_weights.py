"""Single images from units that fire for few: rows half negative, half positive and smaller.

What leaks: the images of the batch and their labels, exactly.
Paper: Boenisch et al., When the Curious Abandon Honesty: Federated Learning Is Not Private (EuroS&P
    2023).
Assumes: the server chose the weights; a linear layer with ReLUs behind it; the gradient of one step.
Fails: for images of little contrast, which make no unit fire alone; larger batches than soliton takes.

No rows are alike. The paper chooses one scale for a data set; here each row's follows from public or
made-up images. The paper reads images off units that fire once; here these are subtracted from the other
units, and what is left is solved.
"""

import torch
from torch import Tensor

from fedsim.attacks.privacy.crafted.crafted import Crafted
from fedsim.attacks.privacy.crafted.readout import Plan
from fedsim.core import settings
from fedsim.core.types import PublicImages


class TrapWeights(Crafted):
    """Rows of pixels in pairs: a negative weight, and a smaller positive one elsewhere."""

    def __init__(
        self,
        *,
        public: PublicImages | None = None,
        passing: float = 0.03,
        every: int = 1,
        tolerance: float = 1e-3,
        seed: int = 0,
    ) -> None:
        """Set the share of images that a unit is to fire for: about two of a batch."""
        super().__init__(public=public, every=every, tolerance=tolerance, seed=seed)
        self.passing = settings.number("attack.passing", passing, above=0, below=1)

    def plan(self, inputs: Tensor, units: int, random: torch.Generator) -> Plan:
        """Return rows of which one random half is negative, and the other the same numbers, scaled."""
        size = inputs.shape[1]
        black = inputs.double().amin(dim=0)
        bright = (inputs.double() - black).float()
        order = torch.rand(units, size, generator=random).argsort(dim=1)
        sizes = torch.randn(units, size // 2, generator=random).abs() / size**0.5
        below, above = torch.zeros(2, units, size)
        below.scatter_(1, order[:, : size // 2], sizes)
        above.scatter_(1, order[:, size // 2 : 2 * (size // 2)], sizes)
        # A unit fires where scale x positive part > negative part.
        scales = torch.quantile((bright @ below.T) / (bright @ above.T).clamp(min=1e-9), self.passing, dim=0)
        rows = (scales[:, None] * above - below).double()
        return Plan(rows=rows, thresholds=rows @ black, levels=torch.zeros(units, dtype=torch.int64))
