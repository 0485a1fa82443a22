"""A user's own images from one .npz file."""

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedsim.core.errors import FedsimError
from fedsim.core.types import Task
from fedsim.data.images import Dataset, array_images

_ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")


def npz(
    *,
    path: str,
    num_classes: int | None = None,
    mean: Sequence[float] = (0.5,),
    std: Sequence[float] = (0.25,),
) -> Dataset:
    """Your own images: an .npz with train_images, train_labels, test_images, test_labels (uint8, NHW[C])."""
    file_path = Path(path).expanduser().resolve()
    if not file_path.is_file():
        raise FedsimError(f"no such file: {file_path}. Remedy: set data.path to an .npz with {_ARRAYS}.")
    try:
        if not zipfile.is_zipfile(file_path):
            raise FedsimError(f"{file_path} is no .npz archive. Remedy: write it with numpy.savez.")
        with np.load(file_path) as file:
            if missing := [name for name in _ARRAYS if name not in file]:
                raise FedsimError(
                    f"{file_path}: missing array {missing[0]!r}. Expected {_ARRAYS}, got {tuple(file)}."
                )
            arrays = {name: file[name] for name in _ARRAYS}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise FedsimError(f"{file_path}: not a readable .npz of plain arrays ({error}).") from error
    train = array_images(arrays["train_images"], arrays["train_labels"], str(file_path))
    test = array_images(arrays["test_images"], arrays["test_labels"], str(file_path))
    if train.pixels.shape[1:] != test.pixels.shape[1:]:
        raise FedsimError(f"{file_path}: train and test images differ in shape.")
    largest = int(max(train.labels.max(), test.labels.max()))
    if num_classes is not None and num_classes <= largest:
        raise FedsimError(f"data.num_classes: got {num_classes}, but {file_path} holds label {largest}.")
    channels, height, width = train.pixels.shape[1:]
    task = Task(
        input_shape=(channels, height, width),
        num_classes=num_classes or largest + 1,
        mean=tuple(mean),
        std=tuple(std),
    )
    return Dataset(task=task, train=train, test=test)
