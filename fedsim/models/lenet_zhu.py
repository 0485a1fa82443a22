"""The strided LeNet without pooling on which gradient matching began.

Paper: Zhu et al., Deep Leakage from Gradients (NeurIPS 2019).
"""

from collections import OrderedDict

from torch import nn

from fedsim.core.types import Task
from fedsim.models.layers import Normalize, activation_layer, flat_size


def lenet_zhu(task: Task, *, activation: str = "sigmoid") -> nn.Module:
    """DLG's LeNet: three 5x5 convolutions of 12 channels (strides 2, 2, 1), smooth, one linear layer."""
    features = nn.Sequential(
        OrderedDict(
            normalize=Normalize(task),
            conv1=nn.Conv2d(task.input_shape[0], 12, 5, stride=2, padding=2),
            activation1=activation_layer(activation),
            conv2=nn.Conv2d(12, 12, 5, stride=2, padding=2),
            activation2=activation_layer(activation),
            conv3=nn.Conv2d(12, 12, 5, stride=1, padding=2),
            activation3=activation_layer(activation),
            flatten=nn.Flatten(),
        )
    )
    output = nn.Linear(flat_size(features, task), task.num_classes)
    model = nn.Sequential(OrderedDict(features=features, output=output))
    for parameter in model.parameters():  # DLG's wide initialisation keeps the sigmoids informative
        nn.init.uniform_(parameter, -0.5, 0.5)
    return model
