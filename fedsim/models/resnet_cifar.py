"""Residual networks of the size for CIFAR: 20, 32, 44 or 56 layers.

Paper: He et al., Deep Residual Learning for Image Recognition (CVPR 2016), section 4.2.
"""

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsim.core.settings import one_of
from fedsim.core.types import Task
from fedsim.models.layers import Normalize


class Block(nn.Module):
    """Two 3x3 convolutions beside a shortcut, which is padded with zeros where the width grows."""

    def __init__(self, width_in: int, width: int) -> None:
        super().__init__()
        self.stride = 1 if width_in == width else 2
        self.conv1 = nn.Conv2d(width_in, width, 3, stride=self.stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.missing = width - width_in

    def forward(self, images: Tensor) -> Tensor:
        """Return the block's output."""
        shortcut = images[:, :, :: self.stride, :: self.stride]
        shortcut = functional.pad(shortcut, (0, 0, 0, 0, 0, self.missing))
        inner = torch.relu(self.norm1(self.conv1(images)))
        return torch.relu(self.norm2(self.conv2(inner)) + shortcut)


def resnet_cifar(task: Task, *, depth: int = 20) -> nn.Module:
    """ResNet of three stages of 16, 32 and 64 channels, for small images."""
    one_of("model.depth", depth, (20, 32, 44, 56))
    blocks, width = OrderedDict[str, nn.Module](), 16
    for stage, wider in enumerate((16, 32, 64), start=1):
        for number in range((depth - 2) // 6):
            blocks[f"block{stage}_{number}"] = Block(width, wider)
            width = wider
    model = nn.Sequential(
        OrderedDict(
            normalize=Normalize(task),
            conv=nn.Conv2d(task.input_shape[0], 16, 3, padding=1, bias=False),
            norm=nn.BatchNorm2d(16),
            relu=nn.ReLU(),
            **blocks,
            pool=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
            output=nn.Linear(64, task.num_classes),
        )
    )
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight)
    return model
