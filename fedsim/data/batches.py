"""Which images a client trains on in a local step: a pure function of seed, round, client and step."""

import torch
from torch import Generator, Tensor

from fedsim.core.errors import FedsimError
from fedsim.core.randomness import generator


def batch_indices(
    labels: Tensor,
    owned: Tensor,
    *,
    batch_size: int,
    layout: str,
    replacement: bool,
    seed: int,
    client: int,
    step: int,
    poisson: bool = False,
) -> Tensor:
    """Choose the batch of a client's `step`-th local step (counted over all rounds, from 0).

    natural draws from what the client owns, in epochs when without replacement; the other layouts
    first fix how many images of each class there are. A client that owns fewer images than
    batch_size trains on all of them. poisson: each image by itself, as accountants of privacy assume.
    """
    if poisson:
        return owned[poisson_places(len(owned), batch_size, seed, client, step)]
    if layout != "natural":
        _need(labels.ndim == 1, layout, "one label an example", batch_size)
        random = generator(seed, "batch", client, step)
        wanted = layout_counts(labels[owned], batch_size, layout, random)
        return _with_counts(labels, owned, wanted, replacement, random)
    return owned[natural_places(len(owned), batch_size, replacement, seed, client, step)]


def natural_places(
    number: int, batch_size: int, replacement: bool, seed: int, client: int, step: int
) -> Tensor:
    """Return where in its data, of so many examples, a client finds a step's batch, whatever the labels."""
    if replacement:
        return torch.randint(number, (batch_size,), generator=generator(seed, "batch", client, step))
    size = min(batch_size, number)
    epoch, place = divmod(step, number // size)
    order = torch.randperm(number, generator=generator(seed, "epoch", client, epoch))
    return order[place * size : (place + 1) * size]


def poisson_places(number: int, batch_size: int, seed: int, client: int, step: int) -> Tensor:
    """Return where in its data a client finds a batch that each example joins by chance alone."""
    drawn = torch.rand(number, generator=generator(seed, "poisson", client, step))
    places = (drawn < batch_size / number).nonzero()[:, 0]
    if not len(places):
        raise FedsimError(
            f"federation.sampling=poisson: client {client} drew no example in step {step}. "
            "Remedy: a larger federation.batch_size (from 16 on that does not happen)."
        )
    return places


def layout_counts(labels: Tensor, batch_size: int, layout: str, random: Generator) -> dict[int, int]:
    """Return class -> number of images for a wanted layout, over the classes that occur in `labels`."""
    classes = torch.unique(labels)
    shuffled = [int(c) for c in classes[torch.randperm(len(classes), generator=random)]]
    if layout == "uniform":  # as equal as possible, the remainder to random classes
        share, rest = divmod(batch_size, len(shuffled))
        return {c: share + (i < rest) for i, c in enumerate(shuffled) if share + (i < rest)}
    if layout == "one_per_class":
        _need(batch_size <= len(shuffled), layout, f"batch_size <= {len(shuffled)} classes", batch_size)
        return dict.fromkeys(shuffled[:batch_size], 1)
    if layout == "repeated":
        return {shuffled[0]: batch_size}
    _need(batch_size >= 3 and len(shuffled) >= 3, layout, "batch_size >= 3 and 3 classes", batch_size)
    return {shuffled[0]: 1, shuffled[1]: batch_size - 2, shuffled[2]: 1}


def _with_counts(
    labels: Tensor, owned: Tensor, wanted: dict[int, int], replacement: bool, random: Generator
) -> Tensor:
    chosen = []
    for label, count in sorted(wanted.items()):
        pool = owned[labels[owned] == label]
        if replacement:
            picks = torch.randint(len(pool), (count,), generator=random)
        else:
            if count > len(pool):
                raise FedsimError(
                    f"federation.labels: wanted {count} images of class {label}, the client owns "
                    f"{len(pool)}. "
                    "Remedy: federation.sampling=with_replacement, fewer clients or a smaller batch."
                )
            picks = torch.randperm(len(pool), generator=random)[:count]
        chosen.append(pool[picks])
    indices = torch.cat(chosen)
    return indices[torch.randperm(len(indices), generator=random)]


def _need(holds: bool, layout: str, expected: str, batch_size: int) -> None:
    if not holds:
        raise FedsimError(f"federation.labels={layout}: expected {expected}, got batch_size {batch_size}")
