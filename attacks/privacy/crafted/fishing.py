"""Images of one class out of a batch of any size: the others leave no gradient.

What leaks: the images of the target class whose feature is in the fished share, exactly.
Paper: Wen et al., Fishing for User Data in Large-Batch Federated Learning via Gradient Magnification
    (ICML 2022). There one image's gradient is inverted by matching; here it is read off, so several may
    be left.
Assumes: the server chose the weights; exactly two linear layers, a ReLU between them; the gradient of one
    step.
Fails: with more images of the class in the fished share than units; residual networks, whose pooling
    leaves nothing to read images off.

Class: every logit is constant but the target's, which is so low that whoever has another label has no
loss to speak of in it. Feature: bins are spent on the `brightest` share of images alone; below, no unit
fires. The target moves on by a class a round.
"""

import torch
from torch import Tensor, nn

from fedsim.attacks.privacy.crafted.crafted import Crafted
from fedsim.attacks.privacy.crafted.imprint import binned
from fedsim.attacks.privacy.crafted.readout import LEVEL, Plan, find_place
from fedsim.attacks.privacy.matching.linear_layers import linear_names
from fedsim.core import settings
from fedsim.core.errors import FedsimError
from fedsim.core.types import PublicImages, Task, Weights

LOW = -25.0  # logit of the target class: e^-25 of an error is left of other labels


class Fishing(Crafted):
    """Bins that images of one class alone leave errors in."""

    def __init__(
        self,
        *,
        public: PublicImages | None = None,
        target: int = 0,
        brightest: float = 1.0,
        directions: int = 3,
        every: int = 1,
        tolerance: float = 1e-3,
        seed: int = 0,
    ) -> None:
        """Set the first target class, the share of its images to fish for, and the directions of the bins."""
        super().__init__(public=public, every=every, tolerance=tolerance, seed=seed)
        self.target = settings.whole("attack.target", target, 0)
        self.brightest = settings.number("attack.brightest", brightest, above=0, most=1)
        self.directions = settings.whole("attack.directions", directions)

    def check(self, model: nn.Module, task: Task) -> None:
        """Refuse a model in which the layer behind the readout does not give the logits."""
        super().check(model, task)
        if len(names := linear_names(model, task).names) != 2:
            raise FedsimError(
                f"fishing: expected two linear layers, got {names}: the target's logit must be behind "
                "the bins. Remedy: model=mlp model.depth=2, or model=two_layer model.activation=relu."
            )
        if self.target >= task.num_classes:
            raise FedsimError(f"attack.target: expected below {task.num_classes}, got {self.target}")

    def plan(self, inputs: Tensor, units: int, random: torch.Generator) -> Plan:
        """Return bins over the brightest share of images, by what is brightest for each direction."""
        plan = binned(inputs, units, self.directions, 1, random)
        values = inputs.double() @ plan.rows[: self.directions].T
        kept = [torch.quantile(column, 1 - self.brightest) for column in values.T]
        lowest = torch.stack(kept)[torch.arange(units) % self.directions]
        return plan if self.brightest == 1 else _above(plan, values, lowest, self.brightest)

    def craft(self, model: nn.Module, task: Task, round: int, weights: Weights) -> Weights:
        """Send the bins, and a last layer in which the target class alone has a loss."""
        self.check(model, task)
        sent = dict(super().craft(model, task, round, weights))
        place = find_place(model, task)
        target = (self.target + round - 1) % task.num_classes
        weight = torch.zeros_like(sent[f"{place.next}.weight"])
        size = float(sent[f"{place.layer}.weight"].shape[1]) ** 0.5
        weight[target] = LEVEL / weight.shape[1] / size
        bias = torch.zeros(len(weight), dtype=weight.dtype)
        bias[target] = LOW
        return {**sent, f"{place.next}.weight": weight, f"{place.next}.bias": bias}


def _above(plan: Plan, values: Tensor, lowest: Tensor, share: float) -> Plan:
    """Return the plan with thresholds squeezed into the highest share of each direction's values."""
    directions = values.shape[1]
    thresholds = plan.thresholds.clone()
    for direction in range(directions):
        own = torch.arange(len(thresholds)) % directions == direction
        places = (
            1 - share + share * (torch.arange(int(own.sum()), dtype=torch.float64) + 0.5) / int(own.sum())
        )
        thresholds[own] = torch.quantile(values[:, direction], places)
    return Plan(rows=plan.rows, thresholds=torch.maximum(thresholds, lowest), levels=plan.levels)
