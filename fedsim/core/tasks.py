"""What a model says of its task: as many classes as it gives logits for a blank image."""

import torch
from torch import nn

from fedsim.core.errors import FedsimError, in_words
from fedsim.core.inputs import Inputs
from fedsim.core.types import Task


def task_of(
    model: nn.Module,
    input_shape: tuple[int, ...],
    *,
    mean: tuple[float, ...] = (0.0,),
    std: tuple[float, ...] = (1.0,),
    inputs: Inputs | None = None,
) -> Task:
    """Return the task of a model that takes images of this shape; mean, std: how it normalises them.

    inputs: what it takes in place of images; their shape is then theirs.
    """
    input_shape = input_shape if inputs is None else inputs.shape
    if inputs is None and len(input_shape) != 3:
        raise FedsimError(f"input_shape: expected (channels, height, width), got {tuple(input_shape)}")
    parameter = next(model.parameters(), torch.zeros(()))
    try:
        with torch.no_grad():
            given = model(torch.zeros(1, *input_shape, dtype=parameter.dtype, device=parameter.device))
        shape = tuple(given.shape)
    except Exception as error:  # whatever somebody else's model does
        raise FedsimError(
            f"the model does not take images of shape {tuple(input_shape)} ({in_words(error)}). "
            "Remedy: input_shape=(channels, height, width) of its data."
        ) from error
    if len(shape) not in (2, 3 if inputs is not None else 2) or shape[0] != 1:
        raise FedsimError(
            f"expected logits of shape (1, classes) for one image, got {shape}. "
            "Remedy: a model that returns logits."
        )
    return Task(input_shape=tuple(input_shape), num_classes=shape[1], mean=mean, std=std, inputs=inputs)
