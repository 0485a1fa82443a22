"""One blurred image from the first linear layer: the mean of the batch, weighted by a unit's errors.

What leaks: for every unit, its gradient divided by its bias's is a weighted mean of the images.
Paper: Phong et al., Privacy-Preserving Deep Learning via Additively Homomorphic Encryption (2018).
Assumes: a fully connected model with biases; a gradient or an update, of which a ratio is the same.
Fails: to tell the images of a batch apart; behind convolutions.
"""

import math
from collections.abc import Sequence

from torch import nn

from fedsim import Attack, FedsimError, Observation, Reconstruction, Task


class WeightedMean(Attack):
    """The weighted mean of a batch, from the unit of the first layer with the largest bias gradient."""

    def __init__(self, *, units: int = 1) -> None:
        """Set how many units to read, each of which gives an image."""
        if units < 1:
            raise FedsimError(f"attack.units: expected at least 1, got {units}")
        self.units = units

    def run(self, model: nn.Module, task: Task, observations: Sequence[Observation]) -> Reconstruction:
        """Divide the first linear layer's gradients."""
        seen = observations[-1].received
        name = next((name for name, module in model.named_modules() if isinstance(module, nn.Linear)), None)
        if name is None or f"{name}.bias" not in seen:
            raise FedsimError("expected a linear layer with a bias, got none. Remedy: model=mlp.")
        weight, bias = seen[f"{name}.weight"], seen[f"{name}.bias"]
        if weight.shape[1] != math.prod(task.input_shape):
            raise FedsimError(f"images do not enter layer {name!r} directly. Remedy: model=mlp.")
        if not bool(bias.any()):
            raise FedsimError(f"the gradient of layer {name!r} is zero: it holds nothing to recover")
        chosen = bias.abs().topk(min(self.units, int(bias.count_nonzero()))).indices
        rows = (weight[chosen] / bias[chosen, None]).view(-1, *task.input_shape)
        mean, std = (rows.new_tensor(values).view(1, -1, 1, 1) for values in (task.mean, task.std))
        return Reconstruction(images=(rows * std + mean).clamp(0, 1))
