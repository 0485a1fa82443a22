"""A fully connected network over rows of a table, with a learned vector for each category.

Paper: Guo and Berkhahn, Entity Embeddings of Categorical Variables (2016).
"""

from collections import OrderedDict

import torch
from torch import Tensor, nn

from fedsim.core.errors import FedsimError
from fedsim.core.inputs import Row
from fedsim.core.settings import whole
from fedsim.core.types import Task
from fedsim.models.layers import activation_layer


def row_mlp(
    task: Task, *, depth: int = 3, width: int = 100, features: int = 8, activation: str = "relu"
) -> nn.Module:
    """Fully connected network over numbers and embedded categories of a table's rows."""
    if not isinstance(task.inputs, Row):
        raise FedsimError(
            "model row_mlp takes rows of a table, and this data has none. Remedy: data=adult, tabular or csv."
        )
    whole("model.depth", depth)
    whole("model.width", width)
    columns = Columns(task.inputs, whole("model.features", features))
    layers: OrderedDict[str, nn.Module] = OrderedDict(columns=columns)
    entering = columns.width
    for place in range(1, depth):
        layers[f"hidden{place}"] = nn.Linear(entering, width)
        layers[f"activation{place}"] = activation_layer(activation)
        entering = width
    layers["output"] = nn.Linear(entering, task.num_classes)
    return nn.Sequential(layers)


class Columns(nn.Module):
    """Numbers between -1 and 1, and a vector for each category, side by side."""

    def __init__(self, form: Row, features: int) -> None:
        super().__init__()
        self.groups = form.groups
        sizes = [end - first for first, end in self.groups]
        self.tables = nn.ParameterList(
            torch.randn(size, min(features, size)) / min(features, size) ** 0.5 for size in sizes
        )
        grouped = {place for first, end in self.groups for place in range(first, end)}
        self.numbers = [place for place in range(form.shape[-1]) if place not in grouped]
        self.width = len(self.numbers) + sum(table.shape[1] for table in self.tables)

    def forward(self, rows: Tensor) -> Tensor:
        """Return features (N, width); shares of categories mix their vectors."""
        flat = rows.flatten(1)
        embedded = [
            flat[:, first:end] @ table for (first, end), table in zip(self.groups, self.tables, strict=True)
        ]
        return torch.cat([2 * flat[:, self.numbers] - 1, *embedded], dim=1)
