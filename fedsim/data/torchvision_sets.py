"""The standard data sets in full, through torchvision, from a folder on the user's disk."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedsim.core.errors import FedsimError
from fedsim.core.settings import one_of
from fedsim.core.types import Task
from fedsim.core.vision import load_torchvision
from fedsim.data.cifar10_small import CIFAR10_MEAN, CIFAR10_STD
from fedsim.data.images import ArrayImages, Dataset, FileImages, Images, array_images


@dataclass(frozen=True)
class _Kind:
    loader: str  # class in torchvision.datasets
    num_classes: int
    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]


_KINDS = {
    "mnist": _Kind("MNIST", 10, (1, 28, 28), (0.1307,), (0.3081,)),
    "fashion_mnist": _Kind("FashionMNIST", 10, (1, 28, 28), (0.2860,), (0.3530,)),
    "cifar10": _Kind("CIFAR10", 10, (3, 32, 32), CIFAR10_MEAN, CIFAR10_STD),
    "cifar100": _Kind("CIFAR100", 100, (3, 32, 32), (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "imagenet": _Kind("ImageNet", 1000, (3, 224, 224), (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}


def torchvision_set(*, name: str, root: str = "data", download: bool = False) -> Dataset:
    """A standard data set by name, read by torchvision from `root` (download: fetch it first)."""
    one_of("data.name", name, _KINDS)
    kind = _KINDS[name]
    train = _images(kind, _open(kind, name, root, download, train=True))
    test = _images(kind, _open(kind, name, root, download, train=False))
    task = Task(input_shape=kind.shape, num_classes=kind.num_classes, mean=kind.mean, std=kind.std)
    return Dataset(task=task, train=train, test=test)


def _open(kind: _Kind, name: str, root: str, download: bool, train: bool) -> Any:
    folder = Path(root).expanduser().resolve()
    loader = getattr(load_torchvision().datasets, kind.loader)
    try:
        if name == "imagenet":  # its licence forbids an automatic download
            return loader(root=folder, split="train" if train else "val")
        return loader(root=folder, train=train, download=download)
    except (RuntimeError, OSError) as error:
        if name == "imagenet":
            remedy = "put ILSVRC2012_devkit_t12.tar.gz and the train and val archives there, or set data.root"
        else:
            remedy = "set data.root to the folder that holds it, or data.download=true with a network"
        raise FedsimError(
            f"data set {name!r} not found: looked in {folder} ({error}). Remedy: {remedy}."
        ) from error


def _images(kind: _Kind, opened: Any) -> Images:
    if kind.loader == "ImageNet":
        labels = torch.tensor(opened.targets, dtype=torch.int64)
        return FileImages(
            open=lambda index: opened.loader(opened.samples[index][0]), labels=labels, channels=3, size=224
        )
    images: ArrayImages = array_images(np.asarray(opened.data), np.asarray(opened.targets), kind.loader)
    return images
