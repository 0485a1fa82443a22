"""Residual networks from torchvision.

Paper: He et al., Deep Residual Learning for Image Recognition (CVPR 2016).
"""

from collections import OrderedDict

from torch import nn

from fedsim.core.settings import one_of
from fedsim.core.types import Task
from fedsim.core.vision import load_torchvision
from fedsim.models.layers import Normalize


def resnet(task: Task, *, depth: int = 18, variant: str = "auto") -> nn.Module:
    """ResNet-18 to 152 (torchvision's); for small images a 3x3 stem without pooling."""
    one_of("model.depth", depth, (18, 34, 50, 101, 152))
    network = getattr(load_torchvision().models, f"resnet{depth}")(weights=None, num_classes=task.num_classes)
    if is_small(task, variant):
        network.conv1 = nn.Conv2d(task.input_shape[0], 64, 3, padding=1, bias=False)
        nn.init.kaiming_normal_(network.conv1.weight, mode="fan_out", nonlinearity="relu")
        network.maxpool = nn.Identity()
    else:
        fit_first_convolution(network, "conv1", task)
    return nn.Sequential(OrderedDict(normalize=Normalize(task), network=network))


def is_small(task: Task, variant: str) -> bool:
    """Say whether to build the variant for CIFAR-size images (auto: up to 64 pixels)."""
    one_of("model.variant", variant, ("auto", "cifar", "imagenet"))
    return variant == "cifar" or (variant == "auto" and max(task.input_shape[1:]) <= 64)


def fit_first_convolution(parent: nn.Module, name: str, task: Task) -> None:
    """Replace torchvision's three-channel first convolution when the images have another number."""
    first = parent.get_submodule(name)
    if not isinstance(first, nn.Conv2d) or first.in_channels == task.input_shape[0]:
        return
    fitted = nn.Conv2d(
        task.input_shape[0],
        first.out_channels,
        first.kernel_size,  # type: ignore[arg-type]
        stride=first.stride,  # type: ignore[arg-type]
        padding=first.padding,  # type: ignore[arg-type]
        bias=first.bias is not None,
    )
    nn.init.kaiming_normal_(fitted.weight, mode="fan_out", nonlinearity="relu")
    parent.register_module(name, fitted)
