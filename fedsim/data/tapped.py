"""The data of an app that was tapped: its form alone."""

from collections.abc import Sequence

import torch

from fedsim.core.types import Task
from fedsim.data.images import ArrayImages, Dataset


def tapped_data(
    *, input_shape: Sequence[int], num_classes: int, mean: Sequence[float], std: Sequence[float]
) -> Dataset:
    """The form of a tapped app's data, without the data."""
    channels, height, width = input_shape
    nothing = ArrayImages(
        pixels=torch.zeros(0, *input_shape, dtype=torch.uint8), labels=torch.zeros(0, dtype=torch.int64)
    )
    task = Task(
        input_shape=(channels, height, width), num_classes=num_classes, mean=tuple(mean), std=tuple(std)
    )
    return Dataset(task=task, train=nothing, test=nothing)
