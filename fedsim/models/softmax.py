"""Softmax regression: one linear layer on the pixels."""

from collections import OrderedDict
from math import prod

from torch import nn

from fedsim.core.types import Task
from fedsim.models.layers import Normalize


def softmax(task: Task) -> nn.Module:
    """Softmax regression: a single linear layer."""
    return nn.Sequential(
        OrderedDict(
            normalize=Normalize(task),
            flatten=nn.Flatten(),
            output=nn.Linear(prod(task.input_shape), task.num_classes),
        )
    )
