"""Local steps of a fully connected network in float64, as the server replays them."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from fedsim.attacks.privacy.matching.linear_layers import Between
from fedsim.core.types import Weights


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearNetwork:
    """Linear layers by name, and what acts between each and the next."""

    names: tuple[str, ...]
    between: tuple[Between, ...]

    def slopes(self, weights: Weights, inputs: Tensor, labels: Tensor) -> tuple[Weights, Tensor]:
        """Return the gradient of a batch's mean loss by the weights, and by the first layer's outputs.

        inputs: [x | 1] of the first layer.
        """
        own = {name: tensor.detach().requires_grad_() for name, tensor in weights.items()}
        with torch.enable_grad():
            outputs = functional.linear(inputs[:, :-1], *self._layer(own, 0))
            values = outputs
            for place, act in enumerate(self.between, start=1):
                values = functional.linear(act(values), *self._layer(own, place))
            loss = functional.cross_entropy(values, labels)
            *slopes, errors = torch.autograd.grad(loss, [*own.values(), outputs], materialize_grads=True)
        return dict(zip(own, slopes, strict=True)), errors

    def _layer(self, weights: Weights, place: int) -> tuple[Tensor, Tensor]:
        name = self.names[place]
        return weights[f"{name}.weight"], weights[f"{name}.bias"]
