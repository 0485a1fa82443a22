"""LeNet-5 as the label-restoration papers use it.

Paper: LeCun et al., Gradient-based learning applied to document recognition (1998).
"""

from collections import OrderedDict

from torch import nn

from fedsim.core.settings import whole
from fedsim.core.types import Task
from fedsim.models.layers import Normalize, activation_layer, flat_size


def lenet5(task: Task, *, activation: str = "relu", padding: int = 0) -> nn.Module:
    """LeNet-5: convolutions of 6 and 16 (5x5, max-pooling), then 120-84-classes.

    padding 2 makes digits of 28 x 28 pixels the 32 x 32 of the original: 61,706 parameters, not 44,426.
    """
    whole("model.padding", padding, 0)
    convolutions = nn.Sequential(
        OrderedDict(
            normalize=Normalize(task),
            conv1=nn.Conv2d(task.input_shape[0], 6, 5, padding=padding),
            activation1=activation_layer(activation),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(6, 16, 5),
            activation2=activation_layer(activation),
            pool2=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
        )
    )
    for layer in convolutions:
        if isinstance(layer, nn.Conv2d):  # as the iLRG paper: Kaiming on convolutions only
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    head = nn.Sequential(
        OrderedDict(
            linear1=nn.Linear(flat_size(convolutions, task), 120),
            activation3=activation_layer(activation),
            linear2=nn.Linear(120, 84),
            activation4=activation_layer(activation),
            output=nn.Linear(84, task.num_classes),
        )
    )
    return nn.Sequential(OrderedDict(features=convolutions, head=head))
