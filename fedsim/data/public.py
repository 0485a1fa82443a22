"""Images that the attacker has too: from a split that no client owns, or a data set of the user's."""

import torch

from fedsim.core.randomness import generator
from fedsim.core.settings import one_of, whole
from fedsim.core.types import PublicImages
from fedsim.data.images import Dataset, Images


def public_images(*, data: Dataset, size: int = 500, split: str = "test", seed: int = 0) -> PublicImages:
    """Draw labelled public images; clients own the training split, so `test` is disjoint from theirs."""
    one_of("public.split", split, ("train", "test"))
    whole("public.size", size)
    return drawn(data.test if split == "test" else data.train, size, seed)


def drawn(source: Images, size: int, seed: int = 0) -> PublicImages:
    """Draw labelled images of a split, or take all where there are no more."""
    chosen = torch.randperm(len(source.labels), generator=generator(seed, "public"))[:size]
    return PublicImages(images=source.batch(chosen), labels=source.labels[chosen])
