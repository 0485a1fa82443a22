"""A user's own images from a folder: root/train/<class>/*.png and root/test/<class>/*.png."""

from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image

from fedsim.core.errors import FedsimError
from fedsim.core.settings import one_of
from fedsim.core.types import Task
from fedsim.data.images import Dataset, FileImages

_ENDINGS = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff"}


def image_folder(
    *,
    root: str,
    size: int = 32,
    channels: int = 3,
    mean: Sequence[float] = (0.5,),
    std: Sequence[float] = (0.25,),
) -> Dataset:
    """Your own pictures: root/train/CLASS/* and root/test/CLASS/*, scaled and cut to size x size."""
    one_of("data.channels", channels, (1, 3))
    folder = Path(root).expanduser().resolve()
    classes = _class_names(folder / "train")
    train = _split(folder / "train", classes, size, channels)
    test = _split(folder / "test", classes, size, channels)
    task = Task(
        input_shape=(channels, size, size), num_classes=len(classes), mean=tuple(mean), std=tuple(std)
    )
    return Dataset(task=task, train=train, test=test)


def _read(path: Path) -> Image.Image:
    try:
        image = Image.open(path)
        image.load()
    except OSError as error:
        raise FedsimError(f"{path}: not a readable picture ({error}). Remedy: mend or remove it.") from error
    return image


def _class_names(folder: Path) -> list[str]:
    found = folder.iterdir() if folder.is_dir() else []
    names = sorted(path.name for path in found if path.is_dir() and not path.name.startswith("."))
    if len(names) < 2:
        raise FedsimError(
            f"no classes found: looked for at least two folders in {folder}. "
            "Remedy: set data.root to a folder with train/CLASS/*.png and test/CLASS/*.png."
        )
    return names


def _split(folder: Path, classes: list[str], size: int, channels: int) -> FileImages:
    found = [
        (path, label)
        for label, name in enumerate(classes)
        for path in sorted((folder / name).glob("*"))
        if path.suffix.lower() in _ENDINGS
    ]
    if not found:
        raise FedsimError(
            f"no images found: looked in {folder}/CLASS/ for {', '.join(sorted(_ENDINGS))}. "
            "Remedy: put at least one image there; the classes are the folders of train/."
        )
    return FileImages(
        open=lambda index: _read(found[index][0]),
        labels=torch.tensor([label for _, label in found]),
        channels=channels,
        size=size,
    )
