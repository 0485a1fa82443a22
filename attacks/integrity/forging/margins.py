"""How far the unread pixels of an image can be moved before a unit of the first convolution wakes up.

Units that are off, or that a pooling passed over, stay so while linear inequalities hold: a program in whole
numbers. Its end is a proof, too: an image is stuck if no move is left.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_matrix
from torch import Tensor, nn
from torch.nn import functional

from fedsim.core.randomness import generator
from fedsim.core.training import Batch

Values = NDArray[np.float64]
SURE = 1e-4  # of a weight: moves count for a little more than they do, so that rounding wakes nobody
RANK = 1e-10  # of what a unit sees, squared: less is rounding
SECONDS = 2.0  # for a program that is to be a proof


@dataclass(frozen=True, kw_only=True, eq=False)
class Margins:
    """The units of a first convolution on a batch: which pixels they read, and how far they may rise."""

    pixels: Tensor  # (places, weights of a unit): numbers of the pixels that a place reads; -1: the edge's
    weights: Tensor  # (channels, weights of a unit), in rise for a grey level
    room: Tensor  # (images, channels, places): how far a unit may rise and stay off, or passed over
    read: Tensor  # bool, likewise: an error comes back to where the unit is shown
    held: tuple[Tensor, ...]  # bool, likewise: units that must not move; one for each way to settle ties
    chosen: tuple[Tensor, ...]  # (images, channels, windows) of a pooling: which units these are, on or not

    def unread_rise(self) -> "Margins":
        """Return margins by which units rise as they like where no error comes back."""
        return replace(
            self,
            room=torch.where(self.read, self.room, torch.inf),
            held=tuple(held & self.read for held in self.held),
        )


def margins(model: nn.Module, batch: Batch) -> Margins | None:
    """Read the margins of a batch; None: the model does not begin with a convolution and ReLUs."""
    images = batch.images
    calls = list[tuple[nn.Module, Tensor]]()
    leaves = [module for module in model.modules() if next(module.children(), None) is None]
    hooks = [leaf.register_forward_hook(lambda m, i, o: calls.append((m, o))) for leaf in leaves]
    try:
        loss = functional.cross_entropy(model(images), batch.labels)
    finally:
        for hook in hooks:
            hook.remove()
    first = next((n for n, (leaf, _) in enumerate(calls) if isinstance(leaf, nn.Conv2d)), None)
    if first is None or any(next(leaf.parameters(), None) is not None for leaf, _ in calls[:first]):
        return None
    convolution, units = calls[first]
    assert isinstance(convolution, nn.Conv2d)
    if convolution.groups != 1 or isinstance(convolution.padding, str):
        return None
    weights = convolution.weight.detach().double()
    following = calls[first + 1 :]
    if following and isinstance(norm := following[0][0], nn.BatchNorm2d):
        assert norm.running_var is not None
        slope = (norm.weight / (norm.running_var + norm.eps).sqrt()).detach().double()
        weights, units, following = weights * slope[:, None, None, None], following[0][1], following[1:]
    shown = {type(leaf): (leaf, output) for leaf, output in reversed(following[:2])}
    if nn.ReLU not in shown:
        return None
    pooling, output = shown.get(nn.MaxPool2d, (None, shown[nn.ReLU][1]))
    (errors,) = torch.autograd.grad(loss, output, materialize_grads=True)
    units = units.detach().double()
    before = (calls[first - 1][1] if first else images).detach().double()
    scale = _per_channel(before, images.double()) if first else torch.ones(images.shape[1]).double()
    places = functional.unfold(
        torch.arange(1, images[0].numel() + 1, dtype=torch.float64).view(1, *images.shape[1:]),
        convolution.kernel_size,
        convolution.dilation,
        convolution.padding,
        convolution.stride,
    )
    pixels = places[0].T.round().long() - 1
    if isinstance(pooling, nn.MaxPool2d) and (side := _side(pooling)):
        levels = torch.round(images.double().flatten(1) * 255).long()
        seen = functional.pad(levels, (0, 1), value=-1)[:, pixels]  # (images, places, weights of a unit)
        heights, held, chosen = _pooled(units, seen, side)
        read = _spread(errors != 0, side, units)
    elif pooling is not None:
        return None
    else:
        heights, held, chosen, read = torch.zeros_like(units), (units > 0,), (), errors != 0
    return Margins(
        pixels=pixels,
        weights=(weights * scale[None, :, None, None] / 255).flatten(1),
        room=(heights - units).clamp(min=0).flatten(2),
        read=read.flatten(2),
        held=tuple(one.flatten(2) for one in held),
        chosen=chosen,
    )


def _side(pooling: nn.MaxPool2d) -> int:
    """Return the side of a pooling's windows if they are squares that do not overlap, else 0."""
    side, plain = pooling.kernel_size, (pooling.padding, pooling.dilation) == (0, 1)
    return side if isinstance(side, int) and pooling.stride == side and plain else 0


def _pooled(units: Tensor, seen: Tensor, side: int) -> tuple[Tensor, tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return how high each unit may rise unnoticed by a pooling behind a ReLU, and which must not move.

    A window passes on the first of its highest units. Where others are as high and see the very same pixels,
    as on a black margin, one of those can take its place: the gradient does not tell them apart. So there
    are as many ways to choose as a window has places.
    """
    shown, width = units.clamp(min=0), units.shape[-1]
    pooled, where = functional.max_pool2d(shown, side, return_indices=True)
    same = torch.randint(2**40, (seen.shape[2],), generator=generator(0, "seen"))
    views = (seen * same).sum(dim=2)[:, None].expand(-1, units.shape[1], -1)  # equal: the same pixels
    held, chosen = list[Tensor](), list[Tensor]()
    for row in range(side):
        for column in range(side):
            other = (where // width // side * side + row) * width + where % width // side * side + column
            high = shown.flatten(2).gather(2, other.flatten(2)) == pooled.flatten(2)
            alike = views.gather(2, other.flatten(2)) == views.gather(2, where.flatten(2))
            kept = torch.where(high & alike, other.flatten(2), where.flatten(2))
            one = torch.zeros_like(shown, dtype=torch.bool)
            one.flatten(2).scatter_(2, kept, True)
            held.append(one & (units > 0))
            chosen.append(kept)
    return _spread(pooled, side, units, beyond=torch.inf), tuple(held), tuple(chosen)


def _spread(pooled: Tensor, side: int, units: Tensor, beyond: float = 0) -> Tensor:
    """Return a value for each unit: that of its window."""
    wide = pooled.repeat_interleave(side, dim=2).repeat_interleave(side, dim=3)
    missing = [units.shape[-1] - wide.shape[-1], units.shape[-2] - wide.shape[-2]]
    return functional.pad(wide, (0, missing[0], 0, missing[1]), value=beyond)  # beyond: in no window


def _per_channel(after: Tensor, before: Tensor) -> Tensor:
    """Return what a normalisation multiplies each channel by."""
    old, new = ((v.amax(dim=(0, 2, 3)) - v.amin(dim=(0, 2, 3))) for v in (before, after))
    return torch.where(old > 0, new / old, torch.ones_like(old))


def furthest(
    own: Margins,
    place: int,
    held: Tensor,
    low: Tensor,
    high: Tensor,
    gain: Tensor,
    seconds: float = SECONDS,
) -> tuple[Tensor, bool]:
    """Return whole moves of an image's pixels, of the largest total gain, that wake no unit; are they proven?

    held: units (channels, places) that must not move; low, high: how far each pixel may move down or up.
    """
    fixed = torch.zeros(len(low) + 1, dtype=torch.bool)
    fixed[own.pixels[held.any(dim=0)]] = True  # the last one is the edge's
    moves = torch.zeros(len(low), dtype=torch.float64)
    chosen = (~fixed[:-1] & ((low < 0) | (high > 0))).nonzero().flatten()
    if not len(chosen):
        return moves, True
    column = torch.full((len(low) + 1,), -1, dtype=torch.int64)
    column[chosen] = torch.arange(len(chosen))
    columns = column[own.pixels]  # (places, weights of a unit); -1: of a pixel that stays
    rows, limits = list[Values](), list[Values]()
    for at in (columns >= 0).any(dim=1).nonzero().flatten().tolist():
        used = columns[at] >= 0
        weights = own.weights[:, used]
        down, up = (ends[own.pixels[at][used]] for ends in (low, high))
        # A little more than it is, upwards: rounding wakes nobody, and who was as high as another is lower.
        weights = weights + SURE * weights.abs() * torch.where(up >= -down, 1.0, -1.0)
        worst = torch.maximum(weights * down, weights * up).sum(dim=1)
        tight = worst > own.room[place, :, at]
        row = np.zeros((int(tight.sum()), len(chosen)))
        row[:, columns[at][used].numpy()] = weights[tight].numpy()
        rows.append(row)
        limits.append(own.room[place, tight, at].numpy())
    table = np.concatenate(rows)
    constraints = [LinearConstraint(csr_matrix(table), -np.inf, np.concatenate(limits))] if len(table) else []
    found = milp(
        -gain[chosen].numpy(),
        integrality=np.ones(len(chosen)),
        bounds=Bounds(low[chosen].numpy(), high[chosen].numpy()),
        constraints=constraints,
        options={"time_limit": seconds, "mip_rel_gap": 0.05},
    )
    if found.x is not None:
        moves[chosen] = torch.from_numpy(np.round(found.x))
    return moves, found.status == 0


def read_units(own: Margins, place: int, pixels: int) -> csr_matrix:
    """Return what the units of an image that are on and read see of its pixels: a row for each unit."""
    channels, places = own.unread_rise().held[0][place].nonzero().T
    columns = own.pixels[places]
    inside = columns >= 0
    rows = torch.arange(len(places))[:, None].expand_as(columns)
    values = own.weights[channels][inside].numpy()
    return csr_matrix((values, (rows[inside].numpy(), columns[inside].numpy())), shape=(len(places), pixels))


def no_direction(own: Margins, place: int, pixels: int) -> bool:
    """Say whether these units see every direction of an image, so that real pixels could not move either."""
    seen = read_units(own, place, pixels)
    if seen.shape[0] < pixels:
        return False
    square = (seen.T @ seen).toarray()
    try:
        heights = np.diag(np.linalg.cholesky(square))
    except np.linalg.LinAlgError:
        return False
    return bool(heights.min() ** 2 > RANK * np.diag(square).max())


def always_read(own: Margins, place: int, pixels: int) -> Tensor:
    """Say which pixels of an image are read however ties are settled, in each window by itself."""
    relaxed = own.unread_rise()
    if not own.chosen:
        read = torch.zeros(pixels + 1, dtype=torch.bool)
        read[own.pixels[relaxed.held[0][place].any(dim=0)]] = True
        return read[:-1]
    always = torch.ones(*own.chosen[0][place].shape, pixels + 1, dtype=torch.bool)
    for units, held in zip(own.chosen, relaxed.held, strict=True):
        patches = own.pixels[units[place]] % (pixels + 1)  # the last one is the edge's
        kept = held[place].gather(1, units[place])[..., None].expand_as(patches)
        always &= torch.zeros_like(always).scatter_(2, patches, kept)
    return always.flatten(0, 1).any(dim=0)[:-1]


def stuck(own: Margins, place: int, image: Tensor) -> bool:
    """Say whether no other grey levels of an image leave what the gradient takes of it as it was.

    Pixels that are read in any case stay, and no unit may rise above what its window passed on: every way to
    settle ties allows less. Moves of the largest and the smallest value in a random direction: if both are
    none, there are none.
    """
    levels = torch.round(image.double().flatten() * 255)
    gain = torch.rand(len(levels), dtype=torch.float64, generator=generator(0, "stuck")) + 0.5
    free = ~always_read(own, place, len(levels))
    relaxed, nobody = own.unread_rise(), torch.zeros_like(own.read[place])
    for sign in (1, -1):
        low, high = -levels * free, (255 - levels) * free
        moves, proven = furthest(relaxed, place, nobody, low, high, sign * gain)
        if bool(moves.any()) or not proven:
            return False
    return True
