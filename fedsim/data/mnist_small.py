"""MNIST, 5,000 training and 1,000 test digits, shipped with the package.

Origin: LeCun et al., Gradient-based learning applied to document recognition (1998).
"""

import numpy as np

from fedsim.core.types import Task
from fedsim.data.images import ASSETS, Dataset, array_images


def mnist_small() -> Dataset:
    """MNIST, class-balanced subset inside the package: 5,000 + 1,000 grey 28x28 digits, 10 classes."""
    with np.load(ASSETS / "mnist_small.npz") as file:
        train = array_images(file["train_images"], file["train_labels"], "mnist_small")
        test = array_images(file["test_images"], file["test_labels"], "mnist_small")
    task = Task(input_shape=(1, 28, 28), num_classes=10, mean=(0.1307,), std=(0.3081,))
    return Dataset(task=task, train=train, test=test)
