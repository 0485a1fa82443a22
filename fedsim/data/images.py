"""Labelled images, in memory or read when needed; pixels always leave here as float32 in [0, 1]."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fedsim.core.errors import FedsimError
from fedsim.core.types import Task
from fedsim.data.form import ANY_FORM, Form

ASSETS = Path(__file__).resolve().parent.parent / "assets"


class Images(Protocol):
    """Labelled images that can be read by index."""

    @property
    def labels(self) -> Tensor:
        """All labels, int64."""

    def batch(self, indices: Tensor) -> Tensor:
        """Read the images at these indices: float32 (N, C, H, W) in [0, 1]."""


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A learning problem with its training images, which clients own, and test images."""

    task: Task
    train: Images
    test: Images
    form: Form = ANY_FORM  # what a verifier may ask of every example


@dataclass(frozen=True, eq=False)
class ArrayImages:
    """Images held in memory as uint8, a quarter of the floats' size."""

    pixels: Tensor  # uint8 (N, C, H, W)
    labels: Tensor

    def batch(self, indices: Tensor) -> Tensor:
        """Read the images at these indices."""
        return self.pixels[indices].to(torch.float32).div_(255)


@dataclass(frozen=True, eq=False)
class FileImages:
    """Images read from files when asked for: scaled on the shorter side, then cut at the centre."""

    open: Callable[[int], Image.Image]
    labels: Tensor
    channels: int
    size: int

    def batch(self, indices: Tensor) -> Tensor:
        """Read the images at these indices."""
        return torch.stack([self._read(int(index)) for index in indices])

    def _read(self, index: int) -> Tensor:
        image = self.open(index)
        if image.mode.startswith("I"):  # 16 bits: PIL would cut at 255, not scale
            image = Image.fromarray((np.asarray(image) / 257).round().astype(np.uint8))
        image = image.convert("RGB" if self.channels == 3 else "L")
        scale = self.size / min(image.size)
        width, height = (max(self.size, round(side * scale)) for side in image.size)
        left, top = (width - self.size) // 2, (height - self.size) // 2
        box = (left, top, left + self.size, top + self.size)
        pixels = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR).crop(box))
        return torch.from_numpy(pixels.copy()).reshape(self.size, self.size, -1).permute(2, 0, 1) / 255


def array_images(pixels: np.ndarray, labels: Sequence[int] | np.ndarray, source: str) -> ArrayImages:
    """Take uint8 images laid out (N, H, W) or (N, H, W, C) with their labels."""
    if pixels.dtype != np.uint8 or pixels.ndim not in (3, 4):
        raise FedsimError(
            f"{source}: expected images as uint8 (N, H, W) or (N, H, W, C), got {pixels.dtype} {pixels.shape}"
        )
    if pixels.ndim == 4 and pixels.shape[3] not in (1, 3):
        raise FedsimError(f"{source}: expected 1 or 3 channels in the last place, got shape {pixels.shape}")
    if not np.issubdtype(np.asarray(labels).dtype, np.integer):
        raise FedsimError(f"{source}: expected whole-number labels, got {np.asarray(labels).dtype}")
    chosen = torch.as_tensor(np.asarray(labels), dtype=torch.int64)
    if chosen.shape != (len(pixels),) or len(pixels) == 0:
        raise FedsimError(
            f"{source}: expected one label for each image, got {len(pixels)} images and {tuple(chosen.shape)}"
        )
    if int(chosen.min()) < 0:
        raise FedsimError(f"{source}: expected labels from 0 upwards, got {int(chosen.min())}")
    stacked = torch.from_numpy(pixels.reshape(*pixels.shape[:3], -1).copy()).permute(0, 3, 1, 2)
    return ArrayImages(pixels=stacked.contiguous(), labels=chosen)
