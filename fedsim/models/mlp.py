"""Fully connected networks of any depth and width."""

from collections import OrderedDict
from math import prod

from torch import nn

from fedsim.core.settings import whole
from fedsim.core.types import Task
from fedsim.models.layers import Normalize, activation_layer


def mlp(task: Task, *, depth: int = 3, width: int = 300, activation: str = "relu") -> nn.Module:
    """Fully connected network with `depth` linear layers, the hidden ones of `width` units."""
    whole("model.depth", depth)
    whole("model.width", width)
    layers: OrderedDict[str, nn.Module] = OrderedDict(normalize=Normalize(task), flatten=nn.Flatten())
    features = prod(task.input_shape)
    for number in range(1, depth):
        layers[f"hidden{number}"] = nn.Linear(features, width)
        layers[f"activation{number}"] = activation_layer(activation)
        features = width
    layers["output"] = nn.Linear(features, task.num_classes)
    return nn.Sequential(layers)
