"""CIFAR-10, 4,500 training and 500 test pictures, shipped with the package as one lossless mosaic.

Origin: Krizhevsky, Learning multiple layers of features from tiny images (2009).
"""

import numpy as np
from PIL import Image

from fedsim.core.types import Task
from fedsim.data.images import ASSETS, Dataset, array_images

CIFAR10_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR10_STD = (0.2470, 0.2435, 0.2616)


def cifar10_small() -> Dataset:
    """CIFAR-10, class-balanced subset inside the package: 4,500 + 500 colour 32x32 pictures, 10 classes."""
    mosaic = np.asarray(Image.open(ASSETS / "cifar10_small.webp").convert("RGB"))
    rows, columns = mosaic.shape[0] // 32, mosaic.shape[1] // 32
    tiles = mosaic.reshape(rows, 32, columns, 32, 3).swapaxes(1, 2).reshape(-1, 32, 32, 3)
    with np.load(ASSETS / "cifar10_small_labels.npz") as file:
        train_labels, test_labels = file["train_labels"], file["test_labels"]
    train = array_images(tiles[: len(train_labels)], train_labels, "cifar10_small")
    test = array_images(tiles[len(train_labels) :], test_labels, "cifar10_small")
    task = Task(input_shape=(3, 32, 32), num_classes=10, mean=CIFAR10_MEAN, std=CIFAR10_STD)
    return Dataset(task=task, train=train, test=test)
