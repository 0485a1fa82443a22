"""Pixels that the gradient does not read, moved as far as they go: another batch, the same update to the bit.

What it gains: batches of whole grey levels, one class each, whose update differs by exactly 0, for
    convolutional networks with ReLUs and poolings, at any stage of training.
Paper: none; an answer to a question that Suliman et al., Towards a Re-evaluation of Data Forging Attacks in
    Practice (2024), leave open. A pixel that enters the first convolution only where no error comes back (a
    ReLU that is off, a pooling that chose another place) is in no sum of the gradient. Whole-number programs
    say how far such pixels go before a unit that is read notices; of equal units that see the same, another
    may stand for the one that was read; a pass over the changed images confirms it bit by bit.
Assumes: that a batch is another one if it is some pixels away: what the model reads of an image stays. Some
    images cannot move at all (margins.stuck proves it), on black margins above all. Convolutions without
    poolings behind the first ones, and linear first layers, leave nothing free.
Caught by: a rule of distance (forge.distance), or comparing claimed images with the one in question.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedsim.attacks.integrity.forging.margins import Margins, furthest, margins
from fedsim.attacks.integrity.forging.replacement import targets
from fedsim.attacks.integrity.forging.unread import reading, same_gradient
from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Challenge, Forgery
from fedsim.core.settings import one_of, whole
from fedsim.core.training import Batch

LEVELS = (255, 40, 5, 1)  # by how much pixels may move where only deeper layers could notice
TOWARDS = ("far", "blank", "other")


class Invisible(Forgery):
    """Moves the unread pixels of each unwanted image towards a goal, as far as the gradient stays."""

    pixels = "uint8"

    def __init__(self, *, towards: str = "far", trials: int = 20) -> None:
        """Set where to move pixels, and after how many passes over the batch to stop.

        far: black or white, whichever is further; blank: black; other: another image of the class.
        """
        self.towards = one_of("forgery.towards", towards, TOWARDS)
        self.trials = whole("forgery.trials", trials)

    def forge(self, challenge: Challenge) -> Batch:
        """Move what can be moved; complain if that is nothing."""
        batch, places = challenge.batch, targets(challenge)
        goals = batch.images.clone()
        goals[places] = goal_images(challenge, places, self.towards)
        images = reach(challenge.model, batch, goals, self.trials, challenge.generator)
        images = confirmed(challenge.model, batch, images, places)
        if torch.equal(images, batch.images):
            raise FedsimError(
                f"forgery=[invisible]: the gradient reads every pixel of the {len(places)} images. "
                "Remedy: a model with poolings behind its first convolution, such as lenet5."
            )
        return Batch(images=images, labels=batch.labels)


def goal_images(challenge: Challenge, places: Tensor, towards: str) -> Tensor:
    """Return where the images at these places would go if the gradient read none of their pixels."""
    images = challenge.batch.images[places]
    if towards == "blank":
        return torch.zeros_like(images)
    if towards == "far":
        return (images < 0.5).to(images.dtype)
    others, goals = challenge.examples(challenge.owned[:2000]), images.clone()
    for row, label in enumerate(challenge.batch.labels[places].tolist()):
        alike = (others.labels == label).nonzero().flatten()
        if len(alike):  # another one for each, as far as there are
            goals[row] = others.images[alike[row % len(alike)]].to(images)
    return goals


def reach(model: nn.Module, batch: Batch, goals: Tensor, trials: int, chance: torch.Generator) -> Tensor:
    """Return images as near to their goals as can be found while the gradient takes the same from each.

    First what whole-number programs say of the first convolution. Then random sets of unread pixels: one that
    is noticed is halved, one that is not is kept, and the next may be larger.
    """
    before = reading(model, batch)

    def tried(images: Tensor, moved: Tensor) -> tuple[Tensor, Tensor]:
        same = before.same_as(reading(model, Batch(images=moved, labels=batch.labels)))[:, None, None, None]
        return torch.where(same, moved, images), same

    images = batch.images
    if (own := margins(model, batch)) is not None:
        images = _by_programs(own, images, goals, lambda now, moved: tried(now, moved)[0])
    share = torch.ones(len(images), 1, 1, 1)
    for trial in range(trials):
        left = before.free & (images != goals)
        if not bool(left.any()):
            break
        drawn = torch.rand(images.shape, generator=chance) < share
        there = goals if trial % 4 < 3 else _half_way(images, goals)
        images, same = tried(images, torch.where(left & drawn, there, images))
        share = torch.where(same, (2 * share).clamp(max=1), share / 2)
    return images


def _by_programs(
    own: Margins, images: Tensor, goals: Tensor, tried: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """Return images moved by whole-number programs, as far as nobody notices.

    First all that no unit notices. For images that have not moved then, units may rise where no error comes
    back, by less and less: deeper layers have the last word.
    """
    waiting, before = (goals != images).flatten(1).any(dim=1), images
    relaxed = own.unread_rise()
    for units, most in ((own, 255), *((relaxed, level) for level in LEVELS)):
        for held in units.held:
            images = tried(images, _asleep(units, held, images, goals, waiting, most))
            waiting = waiting & (images == before).flatten(1).all(dim=1)
    return images


def _asleep(own: Margins, held: Tensor, images: Tensor, goals: Tensor, waiting: Tensor, most: int) -> Tensor:
    """Return images moved as far as no unit of the first convolution wakes up that somebody looks at."""
    levels, ends = (torch.round(values.double().flatten(1) * 255) for values in (images, goals))
    moves = torch.zeros_like(levels)
    for place in waiting.nonzero().flatten().tolist():
        way = (ends[place] - levels[place]).clamp(-most, most)
        low, high = way.clamp(max=0), way.clamp(min=0)
        moves[place], _ = furthest(own, place, held[place], low, high, torch.sign(way))
    moved = ((levels + moves).to(images.dtype) / 255).view_as(images)
    return torch.where((moves != 0).view_as(images), moved, images)


def _half_way(images: Tensor, goals: Tensor) -> Tensor:
    """Return whole grey levels between images and goals."""
    levels = torch.round((images.double() + goals.double()) / 2 * 255)
    return (levels.to(images.dtype) / 255).to(images.dtype)


def confirmed(model: nn.Module, batch: Batch, images: Tensor, places: Tensor) -> Tensor:
    """Return the images that leave the batch's gradient as it was, to the bit; the others as they were.

    Sums over a batch may be taken in another way than over its images, so the whole is looked at, and halves
    of it where it differs.
    """
    kept, waiting = batch.images.clone(), [places]
    while waiting:
        some = waiting.pop()
        tried = kept.clone()
        tried[some] = images[some]
        if same_gradient(model, batch, tried):
            kept = tried
        elif len(some) > 1:
            waiting += [some[: len(some) // 2], some[len(some) // 2 :]]
    return kept
