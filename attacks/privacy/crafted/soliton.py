"""Batches as large as half the units: thresholds that make a code of the gradient which peeling decodes.

What leaks: the images of the batch and their labels, exactly.
Paper: Shariati and Meybodi, gradient inversion inspired by LT codes (2026); Luby, LT Codes (FOCS 2002).
Assumes: the server chose the weights and knows about how large batches are; a linear layer with ReLUs
    behind it; the gradient of one step.
Fails: with more images than units; where thresholds are far from what the clients' images have.

The units of a direction cut it into bins that hold as many images as a robust soliton distribution says,
from the lowest image to the highest; then comes the next direction. Bins, and not tails alone: an image
of little contrast is in no tail, and every image is in one bin of each direction.
"""

import math

import torch
from torch import Tensor

from fedsim.attacks.privacy.crafted.crafted import Crafted
from fedsim.attacks.privacy.crafted.readout import Plan
from fedsim.core import settings
from fedsim.core.types import PublicImages

SPREAD, FAILURE = 0.1, 0.5  # c and delta of the robust soliton distribution


class Soliton(Crafted):
    """Thresholds of a soliton distribution, by quantiles of public or made-up images."""

    def __init__(
        self,
        *,
        public: PublicImages | None = None,
        examples: int = 256,
        every: int = 1,
        tolerance: float = 1e-3,
        seed: int = 0,
    ) -> None:
        """Set how many examples a batch is expected to have."""
        super().__init__(public=public, every=every, tolerance=tolerance, seed=seed)
        self.examples = settings.whole("attack.examples", examples)

    def plan(self, inputs: Tensor, units: int, random: torch.Generator) -> Plan:
        """Return random directions, each cut into bins of so many images as are drawn."""
        chances, turns, edges = robust_soliton(self.examples), list[int](), list[float]()
        while len(edges) < units:
            held = torch.multinomial(chances, self.examples, True, generator=random) + 1
            cuts = torch.cat([held.new_zeros(1), held.cumsum(0)])
            cuts = cuts[cuts < self.examples][: units - len(edges)]
            turns += [turns[-1] + 1 if turns else 0] * len(cuts)
            edges += (cuts / self.examples).tolist()
        turn, shares = torch.tensor(turns), torch.tensor(edges, dtype=torch.float64)
        rows = torch.randn(turns[-1] + 1, inputs.shape[1], generator=random, dtype=torch.float64)
        rows = rows / rows.norm(dim=1, keepdim=True)
        values = inputs.double() @ rows.T
        lowest = values.amin(dim=0) - values.std(dim=0)  # below all that the clients may have
        thresholds = torch.stack(
            [torch.quantile(values[:, t], s) for t, s in zip(turns, shares, strict=True)]
        )
        thresholds = torch.where(shares == 0, lowest[turn], thresholds)
        return Plan(rows=rows[turn], thresholds=thresholds, levels=torch.zeros(units, dtype=torch.int64))


def robust_soliton(size: int) -> Tensor:
    """Return the chances of degrees 1 to size."""
    degrees = torch.arange(1, size + 1, dtype=torch.float64)
    ideal = torch.cat([torch.tensor([1 / size], dtype=torch.float64), 1 / (degrees[1:] * degrees[:-1])])
    ripple = SPREAD * math.log(size / FAILURE) * math.sqrt(size)
    last = max(1, min(size, round(size / ripple)))
    more = torch.where(degrees < last, ripple / (degrees * size), torch.zeros_like(degrees))
    more[last - 1] = max(0.0, ripple * math.log(ripple / FAILURE) / size) if ripple > FAILURE else 0.0
    chances: Tensor = (ideal + more) / (ideal + more).sum()
    return chances
