"""The plain convolutional network of the gradient-inversion papers.

Paper: Geiping et al., Inverting Gradients (NeurIPS 2020).
"""

from collections import OrderedDict

from torch import nn

from fedsim.core.settings import whole
from fedsim.core.types import Task
from fedsim.models.layers import Normalize, activation_layer, flat_size


def convnet(task: Task, *, width: int = 64, activation: str = "relu", batch_norm: bool = True) -> nn.Module:
    """ConvNet: nine 3x3 convolutions (width x 1, 2, 2, then 4), two poolings, one linear layer."""
    whole("model.width", width)
    layers: OrderedDict[str, nn.Module] = OrderedDict(normalize=Normalize(task))
    channels = task.input_shape[0]
    for number, factor in enumerate((1, 2, 2, 4, 4, 4, 4, 4, 4), start=1):
        layers[f"conv{number}"] = nn.Conv2d(channels, factor * width, 3, padding=1)
        channels = factor * width
        if batch_norm:
            layers[f"norm{number}"] = nn.BatchNorm2d(channels)
        layers[f"activation{number}"] = activation_layer(activation)
        if number in (6, 9):
            layers[f"pool{number}"] = nn.MaxPool2d(3)
    layers["flatten"] = nn.Flatten()
    features = nn.Sequential(layers).eval()  # eval: sizing must not touch the running statistics
    output = nn.Linear(flat_size(features, task), task.num_classes)
    return nn.Sequential(OrderedDict(features=features, output=output))
