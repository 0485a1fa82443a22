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
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from fedsim.attacks.integrity.forging.margins import Margins, furthest, margins, no_direction
from fedsim.attacks.integrity.forging.replacement import targets
from fedsim.attacks.integrity.forging.unread import reading, same_step
from fedsim.core.challenges import Challenge
from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Forgery
from fedsim.core.settings import one_of, whole
from fedsim.core.training import Batch
from fedsim.core.types import Weights

LEVELS = (255, 40, 5, 1)  # by how much pixels may move where only deeper layers could notice
SECONDS = 0.5  # for the program of an image: what it has by then is a solution too
TRIED = 8  # pixels of an image that are tried, of those that are noticed least
CHUNK = 64  # gradients of single images at once
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
        images = reach(challenge, goals, places, self.trials)
        if torch.equal(images, batch.images):
            raise FedsimError(f"forgery=[invisible]: {_why_not(challenge, places)}")
        return Batch(images=images, labels=batch.labels)


def _why_not(challenge: Challenge, places: Tensor) -> str:
    """Say why no image moved: no direction is free, or no grey levels along those that are."""
    own, pixels = margins(challenge.model, challenge.batch), challenge.batch.images[0].numel()
    remedy = "Remedy: a model with poolings behind its first convolution, such as lenet5."
    if own is None:
        return f"a first layer that reads every pixel of the {len(places)} images. {remedy}"
    if no_direction(own, int(places[0]), pixels):
        return f"units that are on and read see all {pixels} directions of an image: none is free. {remedy}"
    return f"no other grey levels of the {len(places)} images leave the step as it was. Remedy: other images."


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


def reach(challenge: Challenge, goals: Tensor, places: Tensor, trials: int) -> Tensor:
    """Return images as near to their goals as can be found while the step leads to the same weights.

    First what whole-number programs say of the first convolution, one way to settle ties after the other.
    Then random sets of unread pixels: one that is noticed is halved, one that is not is kept, and the next
    may be larger. Last, for images that have not moved, the grey level that is noticed least.
    """
    model, batch = challenge.model, challenge.batch
    before = reading(model, batch)

    def tried(images: Tensor, moved: Tensor) -> tuple[Tensor, Tensor]:
        same = before.same_as(reading(model, Batch(images=moved, labels=batch.labels)))[:, None, None, None]
        return torch.where(same, moved, images), same

    images = batch.images
    own = margins(model, batch)
    if own is not None:
        for way in range(len(own.held)):
            moved = _by_programs(own, way, batch.images, images, goals, lambda now, then: tried(now, then)[0])
            images = confirmed(challenge, images, moved, places)
    moved, share = images, torch.ones(len(images), 1, 1, 1)
    for trial in range(trials):
        left = before.free & (moved != goals)
        if not bool(left.any()):
            break
        drawn = torch.rand(images.shape, generator=challenge.generator) < share
        there = goals if trial % 4 < 3 else _half_way(moved, goals)
        moved, same = tried(moved, torch.where(left & drawn, there, moved))
        share = torch.where(same, (2 * share).clamp(max=1), share / 2)
    images = confirmed(challenge, images, moved, places)
    for place in _unmoved(batch.images, images, goals).nonzero().flatten().tolist():
        for moved in least_noticed(challenge, images, place):
            images = confirmed(challenge, images, moved, torch.tensor([place]))
    return images


def _unmoved(before: Tensor, images: Tensor, goals: Tensor) -> Tensor:
    """Say which images have a goal, and have not moved."""
    return (goals != before).flatten(1).any(dim=1) & (images == before).flatten(1).all(dim=1)


def _by_programs(
    own: Margins,
    way: int,
    before: Tensor,
    images: Tensor,
    goals: Tensor,
    tried: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """Return images moved by whole-number programs, as far as nobody notices; way: to settle ties.

    First all that no unit notices. For images that have not moved then, units may rise where no error comes
    back, by less and less: deeper layers have the last word.
    """
    relaxed = own.unread_rise()
    for units, most in ((own, 255), *((relaxed, level) for level in LEVELS)):
        waiting = _unmoved(before, images, goals)
        images = tried(images, _asleep(units, units.held[way], images, goals, waiting, most))
    return images


def _asleep(own: Margins, held: Tensor, images: Tensor, goals: Tensor, waiting: Tensor, most: int) -> Tensor:
    """Return images moved as far as no unit of the first convolution wakes up that somebody looks at."""
    levels, ends = (torch.round(values.double().flatten(1) * 255) for values in (images, goals))
    moves = torch.zeros_like(levels)
    for place in waiting.nonzero().flatten().tolist():
        gap = (ends[place] - levels[place]).clamp(-most, most)
        low, high = gap.clamp(max=0), gap.clamp(min=0)
        moves[place], _ = furthest(own, place, held[place], low, high, torch.sign(gap), SECONDS)
    moved = ((levels + moves).to(images.dtype) / 255).view_as(images)
    return torch.where((moves != 0).view_as(images), moved, images)


def least_noticed(challenge: Challenge, images: Tensor, place: int) -> list[Tensor]:
    """Return batches with another grey level in one pixel of an image, the least noticed first.

    Changes below the last bit of the weights are none.
    """
    model, label = challenge.model, challenge.batch.labels[place]
    if any(isinstance(part, nn.BatchNorm2d) and part.training for part in model.modules()):
        return []  # an image has no gradient of its own
    weights = {name: tensor.detach() for name, tensor in model.named_parameters()}
    levels = torch.round(images[place].flatten() * 255)
    other = levels.repeat(len(levels), 1) + torch.diag(torch.where(levels < 255, 1.0, -1.0))
    other = (other / 255).to(images.dtype).view(-1, *images.shape[1:])

    def loss(at: Weights, image: Tensor) -> Tensor:
        logits: Tensor = functional_call(model, dict(at), (image[None],))
        return functional.cross_entropy(logits, label[None])

    wanted = grad(loss)(weights, images[place])
    changes = list[Tensor]()
    for some in torch.split(other, CHUNK):
        found = vmap(grad(loss), in_dims=(None, 0))(weights, some)
        parts = [
            ((found[n] - wanted[n]).abs() / _last_place(weights[n])).flatten(1).sum(dim=1) for n in weights
        ]
        changes.append(torch.stack(parts).sum(dim=0))
    batches = list[Tensor]()
    for row in torch.cat(changes).argsort()[:TRIED].tolist():
        batches.append(images.clone())
        batches[-1][place] = other[row]
    return batches


def _last_place(weights: Tensor) -> Tensor:
    size = weights.abs()
    return torch.nextafter(size, torch.full_like(size, torch.inf)) - size


def _half_way(images: Tensor, goals: Tensor) -> Tensor:
    """Return whole grey levels between images and goals."""
    levels = torch.round((images.double() + goals.double()) / 2 * 255)
    return (levels.to(images.dtype) / 255).to(images.dtype)


def confirmed(challenge: Challenge, kept: Tensor, images: Tensor, places: Tensor) -> Tensor:
    """Return the images that leave the step as it was, to the last bit of weights; the others as kept.

    Sums over a batch may be taken in another way than over its images, so the whole is looked at, and halves
    of it where it differs.
    """
    model, batch, rate = challenge.model, challenge.batch, challenge.learning_rate
    changed = (images[places] != kept[places]).flatten(1).any(dim=1)
    waiting = [places[changed]] if bool(changed.any()) else []
    while waiting:
        some = waiting.pop()
        tried = kept.clone()
        tried[some] = images[some]
        if same_step(model, batch, tried, rate):
            kept = tried
        elif len(some) > 1:
            waiting += [some[: len(some) // 2], some[len(some) // 2 :]]
    return kept
