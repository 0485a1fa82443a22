"""Images that the attacker has too: from a split that no client owns, or a data set of the user's."""

import functools
from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from fedsim.core.randomness import generator
from fedsim.core.settings import one_of, whole
from fedsim.core.types import PublicImages
from fedsim.data.images import ArrayImages, Dataset, Images

MOST_FILES = 10_000  # images that are read from files to compare: a minute


def public_images(*, data: Dataset, size: int = 500, split: str = "test", seed: int = 0) -> PublicImages:
    """Draw labelled public images; clients own the training split, so `test` is disjoint from theirs.

    Test images that are training images, too, as some data sets have them, are left out.
    """
    one_of("public.split", split, ("train", "test"))
    whole("public.size", size)
    source = data.test if split == "test" else data.train
    order = shuffled(source, seed)
    if split == "test" and isinstance(source, ArrayImages) and isinstance(data.train, ArrayImages):
        order = order[~torch.isin(all_fingerprints(source)[order], all_fingerprints(data.train))]
    return labelled(source, order[:size])


def shuffled(source: Images, seed: int = 0) -> Tensor:
    """Return the places of all images in an order that the seed decides."""
    return torch.randperm(len(source.labels), generator=generator(seed, "public"))


def labelled(source: Images, chosen: Tensor) -> PublicImages:
    """Read the images at these places, with their labels."""
    return PublicImages(images=source.batch(chosen), labels=source.labels[chosen])


def number_owned(seen: Tensor, train: Images) -> int:
    """Say how many of the images with these fingerprints are among the clients' training images."""
    return int(torch.isin(seen, all_fingerprints(train)).sum())


def all_fingerprints(images: Images) -> Tensor:
    """Return the fingerprints of all images; of MOST_FILES drawn ones where more must be read from files."""
    return _remembered(images) if isinstance(images, Hashable) else _of_all(images)


@functools.lru_cache(maxsize=4)
def _remembered(images: Any) -> Tensor:
    return _of_all(images)


def _of_all(images: Images) -> Tensor:
    indices = torch.arange(len(images.labels))
    if not isinstance(images, ArrayImages) and len(indices) > MOST_FILES:
        indices = torch.randperm(len(indices), generator=generator(0, "fingerprints"))[:MOST_FILES]
    return torch.cat([fingerprints(images.batch(part)) for part in torch.split(indices, 1000)])


def fingerprints(images: Tensor) -> Tensor:
    """Return a number for each image (N,): the same for the same pixels, of 256 levels."""
    levels = images.mul(255).round().long().flatten(1)
    weights = torch.randint(-(2**62), 2**62, (levels.shape[1],), generator=generator(0, "fingerprint"))
    return (levels * weights).sum(dim=1)  # overflows wrap around, as a hash's may
