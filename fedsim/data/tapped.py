"""The data of an app that was tapped: its form alone."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fedsim.core.inputs import inputs_from
from fedsim.core.types import Task
from fedsim.data.images import ArrayImages, Dataset


def tapped_data(
    *,
    input_shape: Sequence[int],
    num_classes: int,
    mean: Sequence[float],
    std: Sequence[float],
    inputs: Mapping[str, Any] | None = None,
) -> Dataset:
    """The form of a tapped app's data, without the data; inputs: of tokens or rows, as the Wiretap noted."""
    nothing = ArrayImages(
        pixels=torch.zeros(0, *input_shape, dtype=torch.uint8), labels=torch.zeros(0, dtype=torch.int64)
    )
    task = Task(
        input_shape=tuple(input_shape),
        num_classes=num_classes,
        mean=tuple(mean),
        std=tuple(std),
        inputs=None if inputs is None else inputs_from(inputs),
    )
    return Dataset(task=task, train=nothing, test=nothing)
