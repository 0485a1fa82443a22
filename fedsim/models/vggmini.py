"""A small VGG for CIFAR-size images, as the papers on data forging use one.

Paper: Suliman et al., Towards a Re-evaluation of Data Forging Attacks in Practice (2024).
"""

from collections import OrderedDict

from torch import nn

from fedsim.core.types import Task
from fedsim.models.layers import Normalize, activation_layer, flat_size


def vggmini(task: Task, *, width: int = 1524, activation: str = "relu") -> nn.Module:
    """VGGmini: six 3x3 convolutions, max-pooling, two wide layers; 5,749,034 parameters on CIFAR-10.

    The paper gives 5.75 million parameters and not the layers: these are ours, of that size.
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict(normalize=Normalize(task))
    channels = task.input_shape[0]
    for stage, wider in enumerate((32, 64, 128), start=1):
        for number in (1, 2):
            convolution = nn.Conv2d(channels, wider, 3, padding=1)
            nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")  # as VGG
            layers[f"conv{stage}_{number}"] = convolution
            layers[f"activation{stage}_{number}"] = activation_layer(activation)
            channels = wider
        layers[f"pool{stage}"] = nn.MaxPool2d(2)
    layers["flatten"] = nn.Flatten()
    features = nn.Sequential(layers)
    head = nn.Sequential(
        OrderedDict(
            linear1=nn.Linear(flat_size(features, task), width),
            activation1=activation_layer(activation),
            linear2=nn.Linear(width, width),
            activation2=activation_layer(activation),
            output=nn.Linear(width, task.num_classes),
        )
    )
    return nn.Sequential(OrderedDict(features=features, head=head))
