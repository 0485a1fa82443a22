"""Film reviews as bytes, from the unpacked aclImdb folder on the user's disk.

Origin: Maas et al., Learning Word Vectors for Sentiment Analysis (ACL 2011).
"""

from pathlib import Path

import torch

from fedsim.core.errors import FedsimError
from fedsim.core.settings import optional, whole
from fedsim.core.types import Task
from fedsim.data.images import ArrayImages, Dataset
from fedsim.data.text import TEXT_MEAN, TEXT_STD, byte_images

CLASSES = ("neg", "pos")


def imdb(*, root: str, length: int = 128, limit: int | None = None) -> Dataset:
    """IMDB film reviews, good or bad: the first bytes of each, 25,000 + 25,000 or `limit` a class."""
    whole("data.length", length)
    optional(whole, "data.limit", limit)
    folder = Path(root).expanduser().resolve()
    task = Task(input_shape=(1, 1, length), num_classes=len(CLASSES), mean=TEXT_MEAN, std=TEXT_STD)
    train, test = (_read(folder / split, length, limit) for split in ("train", "test"))
    return Dataset(task=task, train=train, test=test)


def _read(folder: Path, length: int, limit: int | None) -> ArrayImages:
    texts, labels = list[bytes](), list[int]()
    for label, name in enumerate(CLASSES):
        found = sorted((folder / name).glob("*.txt"))[:limit]
        if not found:
            raise FedsimError(
                f"imdb: no reviews found: looked for {folder / name}/*.txt. Remedy: set data.root to the "
                "unpacked aclImdb folder, with train/pos, train/neg, test/pos and test/neg in it."
            )
        texts += [_start(path, length) for path in found]
        labels += [label] * len(found)
    return byte_images(texts, torch.tensor(labels), length)


def _start(path: Path, length: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(length)
    except OSError as error:
        raise FedsimError(f"imdb: {path}: cannot be read ({error}). Remedy: mend or remove it.") from error
