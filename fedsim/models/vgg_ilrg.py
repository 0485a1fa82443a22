"""VGG networks as the label-restoration papers use them: BatchNorm, and a head of two wide layers.

Paper: Ma et al., Instance-wise Batch Label Restoration via Gradients in Federated Learning (ICLR 2023).
"""

from collections import OrderedDict

from torch import nn

from fedsim.core.settings import one_of, whole
from fedsim.core.types import Task
from fedsim.models.layers import Normalize, flat_size

CHANNELS = (64, 128, 256, 512, 512)
CONVOLUTIONS = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}


def vgg_ilrg(task: Task, *, depth: int = 16, width: int = 4096) -> nn.Module:
    """VGG-11, 13, 16 or 19 with BatchNorm, then width-width-classes, for images of at least 32 pixels."""
    one_of("model.depth", depth, CONVOLUTIONS)
    whole("model.width", width)
    features = nn.Sequential(OrderedDict(normalize=Normalize(task)))
    entering = task.input_shape[0]
    for block, (channels, number) in enumerate(zip(CHANNELS, CONVOLUTIONS[depth], strict=True), start=1):
        for layer in range(1, number + 1):
            convolution = nn.Conv2d(entering, channels, 3, padding=1)
            nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
            features.add_module(f"conv{block}_{layer}", convolution)
            features.add_module(f"norm{block}_{layer}", nn.BatchNorm2d(channels))
            features.add_module(f"activation{block}_{layer}", nn.ReLU())
            entering = channels
        features.add_module(f"pool{block}", nn.MaxPool2d(2))
    features.add_module("flatten", nn.Flatten())
    head = OrderedDict(  # no dropout: the paper's models do without
        linear1=nn.Linear(flat_size(features.eval(), task), width),
        activation1=nn.ReLU(),
        linear2=nn.Linear(width, width),
        activation2=nn.ReLU(),
        output=nn.Linear(width, task.num_classes),
    )
    return nn.Sequential(OrderedDict(features=features, head=nn.Sequential(head)))
