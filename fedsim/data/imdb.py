"""Film reviews as bytes or as word pieces, from the unpacked aclImdb folder on the user's disk.

Origin: Maas et al., Learning Word Vectors for Sentiment Analysis (ACL 2011).
"""

from pathlib import Path

import torch

from fedsim.core.errors import FedsimError
from fedsim.core.settings import one_of, optional, whole
from fedsim.core.types import Task
from fedsim.data.images import Dataset
from fedsim.data.text import TEXT_MEAN, TEXT_STD, byte_images
from fedsim.data.texts import text_data
from fedsim.data.wordpieces import SPECIAL

CLASSES = ("neg", "pos")
LETTERS = 20  # bytes of a review that are read for each piece


def imdb(
    *, root: str, length: int = 128, limit: int | None = None, unit: str = "bytes", vocabulary: int = 5000
) -> Dataset:
    """IMDB film reviews, good or bad: the beginning of each, 25,000 + 25,000 or `limit` a class."""
    whole("data.length", length)
    optional(whole, "data.limit", limit)
    one_of("data.unit", unit, ("bytes", "pieces"))
    whole("data.vocabulary", vocabulary, 2 * len(SPECIAL))
    folder = Path(root).expanduser().resolve()
    size = length if unit == "bytes" else length * LETTERS
    (train, train_labels), (test, test_labels) = (
        _read(folder / part, size, limit) for part in ("train", "test")
    )
    if unit == "pieces":
        return text_data(
            [content.decode("utf-8", errors="replace").replace("<br />", " ") for content in train + test],
            train_labels + test_labels,
            classes=len(CLASSES),
            length=length,
            vocabulary=vocabulary,
            goal="class",
            test=len(test),
            source=f"imdb: {folder}",
        )
    task = Task(input_shape=(1, 1, length), num_classes=len(CLASSES), mean=TEXT_MEAN, std=TEXT_STD)
    return Dataset(
        task=task,
        train=byte_images(train, torch.tensor(train_labels), length),
        test=byte_images(test, torch.tensor(test_labels), length),
    )


def _read(folder: Path, length: int, limit: int | None) -> tuple[list[bytes], list[int]]:
    texts, labels = list[bytes](), list[int]()
    for label, name in enumerate(CLASSES):
        found = sorted((folder / name).glob("*.txt"))[:limit]
        if not found:
            raise FedsimError(
                f"imdb: no reviews found: looked for {folder / name}/*.txt. Remedy: set data.root to the "
                "aclImdb folder of aclImdb_v1.tar.gz (ai.stanford.edu/~amaas/data/sentiment), unpacked, with "
                "train/pos, train/neg, test/pos and test/neg in it."
            )
        texts += [_start(path, length) for path in found]
        labels += [label] * len(found)
    return texts, labels


def _start(path: Path, length: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(length)
    except OSError as error:
        raise FedsimError(f"imdb: {path}: cannot be read ({error}). Remedy: mend or remove it.") from error
