"""The two-layer network of the Stein reconstruction.

Paper: Wang, Lee and Lei, Reconstructing Training Data from Model Gradient, Provably (AISTATS 2023).
"""

from torch import nn

from fedsim.core.settings import number
from fedsim.core.types import Task
from fedsim.models.mlp import mlp


def two_layer(task: Task, *, width: int = 512, activation: str = "tanh", bias: float = 0.5) -> nn.Module:
    """Two-layer network: `width` hidden units with one fixed bias, C logits."""
    model = mlp(task, depth=2, width=width, activation=activation)
    hidden = model.get_submodule("hidden1")
    assert isinstance(hidden, nn.Linear)
    nn.init.constant_(hidden.bias, number("model.bias", bias))
    return model
