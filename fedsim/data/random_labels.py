"""Real images under labels drawn at random: any number of classes without a data set of that size."""

import torch

from fedsim.core.errors import FedsimError
from fedsim.core.randomness import generator
from fedsim.core.types import Task
from fedsim.data.images import ArrayImages, Dataset


def random_labels(*, data: Dataset, num_classes: int = 100, seed: int = 0) -> Dataset:
    """Another data set's images with labels drawn at random over any number of classes; cannot be learnt."""
    if not isinstance(data.train, ArrayImages) or not isinstance(data.test, ArrayImages):
        raise FedsimError("random_labels: expected a data set held in memory, such as cifar10_small")

    def relabel(images: ArrayImages, name: str) -> ArrayImages:
        shape = (len(images.labels),)
        labels = torch.randint(num_classes, shape, generator=generator(seed, "labels", name))
        return ArrayImages(pixels=images.pixels, labels=labels)

    task = Task(
        input_shape=data.task.input_shape, num_classes=num_classes, mean=data.task.mean, std=data.task.std
    )
    return Dataset(task=task, train=relabel(data.train, "train"), test=relabel(data.test, "test"))
