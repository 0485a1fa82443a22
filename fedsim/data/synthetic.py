"""Made-up images of any shape and number of classes, for tests, scale runs and unusual settings."""

from collections.abc import Sequence

import torch
from torch import Generator, Tensor
from torch.nn import functional

from fedsim.core.errors import FedsimError
from fedsim.core.randomness import generator
from fedsim.core.settings import listed, whole
from fedsim.core.types import Task
from fedsim.data.images import ArrayImages, Dataset


def synthetic(
    *,
    shape: Sequence[int] = (3, 32, 32),
    num_classes: int = 10,
    train_size: int = 5000,
    test_size: int = 1000,
    noise: float = 0.15,
    seed: int = 0,
) -> Dataset:
    """Seeded images of any shape: each class has a smooth pattern, each image adds noise to it."""
    listed("data.shape", shape, "(channels, height, width)", whole, 3, 3)
    whole("data.num_classes", num_classes)
    if min(whole("data.train_size", train_size), whole("data.test_size", test_size)) < num_classes:
        raise FedsimError(
            f"data: expected at least one image a class, got train_size={train_size}, "
            f"test_size={test_size} for {num_classes} classes"
        )
    channels, height, width = shape
    coarse = torch.rand(num_classes, channels, 4, 4, generator=generator(seed, "patterns"))
    patterns = functional.interpolate(coarse, size=(height, width), mode="bilinear")
    task = Task(input_shape=(channels, height, width), num_classes=num_classes, mean=(0.5,), std=(0.25,))
    return Dataset(
        task=task,
        train=_draw(patterns, train_size, noise, generator(seed, "train")),
        test=_draw(patterns, test_size, noise, generator(seed, "test")),
    )


def _draw(patterns: Tensor, size: int, noise: float, random: Generator) -> ArrayImages:
    labels = torch.arange(size) % len(patterns)
    pixels = torch.empty(size, *patterns.shape[1:], dtype=torch.uint8)
    for chunk in torch.split(torch.arange(size), 500):  # the floats of a large set would not fit
        noisy = patterns[labels[chunk]] + noise * torch.randn(
            len(chunk), *patterns.shape[1:], generator=random
        )
        pixels[chunk] = noisy.clamp(0, 1).mul(255).round().to(torch.uint8)
    return ArrayImages(pixels=pixels, labels=labels)
