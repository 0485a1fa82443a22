"""The two-layer network of the Stein reconstruction.

Paper: Wang, Lee and Lei, Reconstructing Training Data from Model Gradient, Provably (AISTATS 2023).
"""

from torch import nn

from fedsim.core.errors import FedsimError
from fedsim.core.types import Task
from fedsim.models.mlp import mlp


def two_layer(task: Task, *, width: int = 512, activation: str = "tanh", bias: float = 0.5) -> nn.Module:
    """Two-layer network: `width` hidden units with one fixed bias, C logits."""
    model = mlp(task, depth=2, width=width, activation=activation)
    hidden = model.get_submodule("hidden1")
    assert isinstance(hidden, nn.Linear)
    try:
        nn.init.constant_(hidden.bias, bias)
    except TypeError as error:
        raise FedsimError(f"model.bias: expected a number, got {bias!r}") from error
    return model
