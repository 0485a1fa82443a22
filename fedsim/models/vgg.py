"""VGG networks from torchvision.

Paper: Simonyan and Zisserman, Very Deep Convolutional Networks for Large-Scale Image Recognition (2014).
"""

from collections import OrderedDict

from torch import nn

from fedsim.core.settings import one_of
from fedsim.core.types import Task
from fedsim.core.vision import load_torchvision
from fedsim.models.layers import Normalize
from fedsim.models.resnet import fit_first_convolution, is_small


def vgg(task: Task, *, depth: int = 16, variant: str = "auto") -> nn.Module:
    """VGG-11, 13 or 16 (torchvision's); for small images one linear layer in place of the big head."""
    one_of("model.depth", depth, (11, 13, 16))
    network = getattr(load_torchvision().models, f"vgg{depth}")(weights=None, num_classes=task.num_classes)
    fit_first_convolution(network.features, "0", task)
    if is_small(task, variant):
        network.avgpool = nn.AdaptiveAvgPool2d(1)
        network.classifier = nn.Linear(512, task.num_classes)
    return nn.Sequential(OrderedDict(normalize=Normalize(task), network=network))
