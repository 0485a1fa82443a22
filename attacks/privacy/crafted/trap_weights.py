"""Single images from units that fire for few: rows half negative, half positive and smaller.

What leaks: the images of the batch and their labels, exactly.
Paper: Boenisch et al., When the Curious Abandon Honesty: Federated Learning Is Not Private (EuroS&P 2023).
Assumes: the server chose the weights; a linear layer with ReLUs behind it; the gradient of one step.
Fails: for images of little contrast, which make no unit fire alone; larger batches than soliton takes.

No rows are alike. The paper chooses one scale for a data set; here each row's follows from public or made-up
images. The paper reads images off units that fire once; here these are subtracted from the other units, and what
is left is solved.
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
        share: float = 0.03,
        every: int = 1,
        tolerance: float = 1e-3,
        seed: int = 0,
    ) -> None:
        """Set the share of images that a unit is to fire for: about two of a batch."""
        super().__init__(public=public, every=every, tolerance=tolerance, seed=seed)
        self.share = settings.number("attack.share", share, above=0, below=1)

    def plan(self, inputs: Tensor, units: int, random: torch.Generator) -> Plan:
        """Return rows of which one random half is negative, and the other the same numbers, scaled."""
        half, black = inputs.shape[1] // 2, inputs.double().amin(dim=0)
        bright = inputs.double() - black
        rows = torch.zeros(units, inputs.shape[1], dtype=torch.float64)
        for row in rows:
            order = torch.randperm(inputs.shape[1], generator=random)
            sizes = torch.randn(half, generator=random, dtype=torch.float64).abs() / half**0.5
            below, above = order[:half], order[half : 2 * half]
            # The unit fires where scale x positive part > negative part.
            scales = (bright[:, below] @ sizes) / (bright[:, above] @ sizes).clamp(min=1e-9)
            row[below], row[above] = -sizes, torch.quantile(scales, self.share) * sizes
        return Plan(rows=rows, thresholds=rows @ black, levels=torch.zeros(units, dtype=torch.int64))
