"""Soliton's idea for an audience that looks: it knows what detectors look at, and stays below their limits.

What leaks: images of the batch and their labels, exactly, fewer than soliton's.
Paper: none; written against defenses/privacy/inspect_weights.py and inspect_gradient.py.
Assumes: what soliton assumes, and detectors with their default limits.
Fails: under a smaller limit for biases; from the second round on where clients remember what they were
    sent and more than `units` of the rows are exchanged.

No two rows are alike and the layers behind stay as they were: errors differ from unit to unit then, and
the network still says which. Rows keep their length, biases stay below `bias` times it, and all but a
share of the units stay honest, so that neither the change nor the units of single examples stand out.
What the few units leave is solved by the spaces of all of them.
"""

import torch
from torch import nn

from fedsim.attacks.privacy.crafted.crafted import Crafted
from fedsim.attacks.privacy.crafted.readout import carrying, entering, find_place, images_of
from fedsim.core import settings
from fedsim.core.errors import FedsimError
from fedsim.core.randomness import generator
from fedsim.core.types import PublicImages, Task, Weights


class Quiet(Crafted):
    """A share of the units with random directions and high thresholds; everything else as it was."""

    def __init__(
        self,
        *,
        public: PublicImages | None = None,
        units: float = 0.2,
        passing: float = 0.03,
        bias: float = 1.9,
        every: int = 1,
        tolerance: float = 1e-3,
        seed: int = 0,
    ) -> None:
        """Set the share of units to exchange, the share of images that pass them, and the largest bias."""
        super().__init__(public=public, every=every, tolerance=tolerance, seed=seed)
        self.units = settings.number("attack.units", units, above=0, most=1)
        self.passing = settings.number("attack.passing", passing, above=0, below=1)
        self.bias = settings.number("attack.bias", bias, above=0)

    def check(self, model: nn.Module, task: Task) -> None:
        """Refuse a model without a layer to read images off, or with convolutions in front of it."""
        if find_place(model, task).carriage is not None:
            raise FedsimError("quiet: convolutions that carry pixels are seen at once. Remedy: model=mlp.")

    def craft(self, model: nn.Module, task: Task, round: int, weights: Weights) -> Weights:
        """Exchange some rows of the readout layer."""
        place = find_place(model, task)
        sent, random = carrying(place, weights), generator(self.seed, "quiet", round)
        rows = weights[f"{place.layer}.weight"].double()
        chosen = torch.randperm(len(rows), generator=random)[: max(1, round_up(self.units * len(rows)))]
        inputs = entering(model, place, sent, images_of(task, self.public, self.seed)).double()
        drawn = torch.randn(len(chosen), rows.shape[1], generator=random, dtype=torch.float64)
        drawn = drawn / drawn.norm(dim=1, keepdim=True)
        thresholds = torch.quantile(inputs @ drawn.T, 1 - self.passing, dim=0).clamp(-self.bias, self.bias)
        lengths = rows[chosen].norm(dim=1)
        kind = weights[f"{place.layer}.weight"].dtype
        weight, bias = (weights[f"{place.layer}.{name}"].clone() for name in ("weight", "bias"))
        weight[chosen] = (drawn * lengths[:, None]).to(kind)
        bias[chosen] = (-thresholds * lengths).to(kind)
        return {**sent, f"{place.layer}.weight": weight, f"{place.layer}.bias": bias}


def round_up(value: float) -> int:
    """Return the next whole number."""
    return -int(-value // 1)
