"""Weights of a ResNet-18 that carry every pixel to its last block, and tell each unit there its place."""

from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor, nn

from fedsim.core.errors import FedsimError
from fedsim.core.types import Task, Weights

PATH = "network."  # where torchvision's network stands in the model
UNIT = 0.05  # weight of the target's logit on a unit: small beside LOW, so that all errors are the same
MOST = 2.0  # more than a mean brightness can be
LEFT = [(0, 1), (1, 0)]  # the taps of a 3 x 3 kernel that look one row up, and one column to the left


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What each channel of the last block holds: pixels, brightness, then a unit a place and bin."""

    channels: int  # of images
    side: int  # of images
    width: int  # channels of the last block

    @property
    def edge(self) -> int:
        """The side of the last feature map."""
        return self.side // 8

    @property
    def places(self) -> int:
        """How many places it has."""
        return self.edge**2

    @property
    def pixels(self) -> int:
        """How many pixels there are at each."""
        return 64 * self.channels

    @property
    def first(self) -> int:
        """The first unit; before it come nine channels of brightness."""
        return self.pixels + 9

    @property
    def bins(self) -> int:
        """How many thresholds each place has."""
        return (self.width - self.first) // self.places

    @property
    def units(self) -> slice:
        """All units, place by place, by rising threshold."""
        return slice(self.first, self.first + self.places * self.bins)

    def images(self, pieces: Tensor) -> Tensor:
        """Put images (N, places, pixels) together: channels hold, at each halving, four neighbours."""
        found = pieces.view(-1, self.edge, self.edge, self.pixels).permute(0, 3, 1, 2)
        while found.shape[1] > self.channels:
            number, deep, high, wide = found.shape
            found = found.reshape(number, 2, 2, deep // 4, high, wide).permute(0, 3, 4, 1, 5, 2)
            found = found.reshape(number, deep // 4, 2 * high, 2 * wide)
        return found


def layout_of(model: nn.Module, task: Task) -> Layout:
    """Return the layout that fits a model, or refuse it."""
    names = dict(model.named_parameters())
    last, stem = f"{PATH}layer4.1.conv2.weight", f"{PATH}conv1.weight"
    plain = (
        last in names
        and f"{PATH}layer4.2.conv1.weight" not in names
        and f"{PATH}layer1.1.conv3.weight" not in names
    )
    if not plain or f"{PATH}layer3.2.conv1.weight" in names or names[stem].shape[2] != 3:
        raise FedsimError(
            "residual_fishing: expected a ResNet-18 with a stem for small images. Remedy: model=resnet18 "
            "model.variant=cifar."
        )
    channels, *sides = task.input_shape
    if len(sides) != 2 or sides[0] != sides[1] or sides[0] not in (8, 16, 24, 32) or channels not in (1, 3):
        raise FedsimError(
            "residual_fishing: expected images of 1 or 3 channels and sides of 8, 16, 24 or 32, got "
            f"{task.input_shape}: halving must come out even, and each place see all others."
        )
    return Layout(channels=channels, side=sides[0], width=len(names[last]))


def residual_weights(
    model: nn.Module,
    task: Task,
    weights: Weights,
    layout: Layout,
    thresholds: Tensor,
    target: int,
    low: float,
) -> dict[str, Tensor]:
    """Return the weights; all paths that carry nothing are zero.

    A channel that is one everywhere, seen through the tap of its upper neighbour, is zero in the first row;
    through another such tap, in the first two: so rows, and columns, are told apart.
    """
    sent = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
    _plain_norms(model, sent)
    pixels = layout.channels
    means, deviations = (torch.tensor(numbers).expand(pixels) for numbers in (task.mean, task.std))
    for channel in range(pixels):  # takes back what the model's first layer did
        sent[f"{PATH}conv1.weight"][channel, channel, 1, 1] = deviations[channel]
        sent[f"{PATH}bn1.bias"][channel] += means[channel]
    sent[f"{PATH}bn1.bias"][pixels] += 1.0  # the channel that is one everywhere: behind the pixels, always

    for stage in (2, 3, 4):
        block, further = f"{PATH}layer{stage}.0.", f"{PATH}layer{stage}.1."
        inner, outer = sent[f"{block}conv1.weight"], sent[f"{block}conv2.weight"]
        for place, (down, right) in enumerate(product(range(2), repeat=2)):
            for pixel in range(pixels):
                inner[place * pixels + pixel, pixel, 1 + down, 1 + right] = 1.0
        one, ways = pixels, 4 * pixels + 1  # of the layers before and behind
        pixels *= 4
        _through(outer, range(pixels))
        if stage == 4:
            break
        sent[f"{block}bn1.bias"][pixels] += 1.0
        _through(outer, [pixels])
        for way, (row, column) in enumerate(LEFT):
            # In stage 2: at least 1, 2, 3, 4 rows down. In stage 3, of half as many rows: 3, 4, 5, 6.
            source = one if stage == 2 else one + 1 + 2 * way + 1
            near, far = ways + 2 * way, ways + 2 * way + 1
            inner[near, source, row, column] = 1.0
            outer[near, near, row, column] = 1.0
            sent[f"{further}conv1.weight"][far, near, row, column] = 1.0
            sent[f"{further}conv2.weight"][far, far, row, column] = 1.0
    _places(sent, layout)
    _units(sent, layout, thresholds)
    head = sent[f"{PATH}fc.weight"]
    head[target, layout.units] = UNIT
    sent[f"{PATH}fc.bias"][target] = low
    return sent


def _plain_norms(model: nn.Module, sent: dict[str, Tensor]) -> None:
    """Let every batch norm give what it gets."""
    for name, module in model.named_modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_var is not None
            assert module.running_mean is not None
            sent[f"{name}.weight"] = (module.running_var.double() + module.eps).sqrt().float()
            sent[f"{name}.bias"] = module.running_mean.clone()


def _through(kernel: Tensor, channels: range | list[int]) -> None:
    for channel in channels:
        kernel[channel, channel, 1, 1] = 1.0


def _places(sent: dict[str, Tensor], layout: Layout) -> None:
    """Tell rows and columns apart at the last map's entry, and make a channel for each place and bin."""
    block = f"{PATH}layer4.0."
    inner, outer = sent[f"{block}conv1.weight"], sent[f"{block}conv2.weight"]
    quarter, own = layout.pixels // 4, layout.pixels
    for pixel, (down, right) in product(range(quarter), product(range(2), repeat=2)):
        inner[own, pixel, 1 + down, 1 + right] = 1.0 / (layout.pixels * layout.places)  # brightness
    steps = own + 1  # at least 1, 2, 3 rows down; then columns
    for way, (row, column) in enumerate(LEFT):
        inner[steps + 3 * way, quarter, row, column] = 1.0
        for further in range(2):  # 4 and 6 rows of twice as many
            inner[steps + 3 * way + 1 + further, quarter + 1 + 2 * way + further, 1, 1] = 1.0
    for number, (down, right) in enumerate(product(range(-1, 2), repeat=2)):
        outer[own + number, own, 1 + down, 1 + right] = 1.0
    bias = sent[f"{block}bn2.bias"]
    for place, (row, column) in enumerate(product(range(layout.edge), repeat=2)):
        units = slice(layout.first + place * layout.bins, layout.first + (place + 1) * layout.bins)
        bias[units] -= MOST
        for way, at in enumerate((row, column)):
            if at:
                outer[units, steps + 3 * way + at - 1, 1, 1] += MOST
            else:
                bias[units] += MOST
            if at + 1 < layout.edge:
                outer[units, steps + 3 * way + at, 1, 1] -= MOST


def _units(sent: dict[str, Tensor], layout: Layout, thresholds: Tensor) -> None:
    """Add up the brightness of all places at each, and compare it with thresholds."""
    block = f"{PATH}layer4.1."
    inner, outer = sent[f"{block}conv1.weight"], sent[f"{block}conv2.weight"]
    own, near = layout.pixels, list(product(range(-1, 2), repeat=2))
    _through(inner, range(own))
    wide = {step: own + number for number, step in enumerate(product(range(-2, 3), repeat=2))}
    for (down, right), channel in wide.items():
        at = max(-1, min(1, down)), max(-1, min(1, right))
        inner[channel, own + near.index(at), 1 + down - at[0], 1 + right - at[1]] = 1.0
    for down, right in product(range(-3, 4), repeat=2):
        at = max(-2, min(2, down)), max(-2, min(2, right))
        outer[layout.units, wide[at], 1 + down - at[0], 1 + right - at[1]] = 1.0
    bias = sent[f"{block}bn2.bias"]
    bias[layout.units] -= (MOST + thresholds.repeat(layout.places)).to(bias)
    bias[own : layout.first] -= MOST  # of the brightness itself nothing is wanted
