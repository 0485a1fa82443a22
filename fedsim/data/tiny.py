"""Every example of a world so small that batches can be counted.

Paper: Suliman et al., Towards a Re-evaluation of Data Forging Attacks in Practice (2024), table IV.
"""

from itertools import product

import torch

from fedsim.core.errors import FedsimError
from fedsim.core.settings import whole
from fedsim.core.types import Task
from fedsim.data.images import ArrayImages, Dataset

MOST = 20_000


def tiny(*, values: int = 2, side: int = 2, num_classes: int = 3) -> Dataset:
    """All images of side x side pixels with so many grey values, each with every class."""
    whole("data.values", values, 2, 256)
    whole("data.side", side)
    whole("data.num_classes", num_classes, 2)
    total = values ** (side * side) * num_classes
    if total > MOST:
        raise FedsimError(f"data: expected at most {MOST} examples, got {total}. Remedy: fewer data.values.")
    levels = [255 * place // (values - 1) for place in range(values)]
    pixels = torch.tensor(list(product(levels, repeat=side * side)), dtype=torch.uint8)
    images = ArrayImages(
        pixels=pixels.view(-1, 1, side, side).repeat_interleave(num_classes, dim=0),
        labels=torch.arange(num_classes).repeat(len(pixels)),
    )
    # Pixels enter the model as they are: 0 is black.
    task = Task(input_shape=(1, side, side), num_classes=num_classes, mean=(0.0,), std=(1.0,))
    return Dataset(task=task, train=images, test=images)
