"""The fully connected network of the iLRG paper.

Paper: Ma et al., Instance-wise Batch Label Restoration via Gradients in Federated Learning (ICLR 2023).
"""

from torch import nn

from fedsim.core.types import Task
from fedsim.models.mlp import mlp


def fcn3(task: Task, *, activation: str = "relu") -> nn.Module:
    """FCN-3: pixels-300-300-classes, torch's default initialisation."""
    return mlp(task, depth=3, width=300, activation=activation)
