"""Where gradient matching begins: images in the model's normalised units."""

import torch
from torch import Generator, Tensor

from fedsim.core.settings import number, whole
from fedsim.core.types import Task


class Start:
    """A way to draw first images."""

    def draw(self, number: int, task: Task, generator: Generator) -> Tensor:
        """Return (number, C, H, W) images in normalised units."""
        raise NotImplementedError


class Normal(Start):
    """Independent normal pixels around mid-grey."""

    def __init__(self, *, deviation: float = 1.0) -> None:
        """Set the deviation in normalised units; a small one starts at grey."""
        self.deviation = number("attack.start.deviation", deviation, least=0)

    def draw(self, number: int, task: Task, generator: Generator) -> Tensor:
        """Draw normal pixels."""
        return self.deviation * torch.randn(number, *task.input_shape, generator=generator)


class Uniform(Start):
    """Independent pixels, uniform in [-1, 1]."""

    def draw(self, number: int, task: Task, generator: Generator) -> Tensor:
        """Draw uniform pixels."""
        return 2 * torch.rand(number, *task.input_shape, generator=generator) - 1


class Patterned(Start):
    """A small random tile, repeated over the image: fewer high frequencies to undo.

    Paper: Wei et al., A Framework for Evaluating Gradient Leakage Attacks (ESORICS 2020).
    """

    def __init__(self, *, tile: int = 4, deviation: float = 1.0) -> None:
        """Set the side of the tile in pixels and its deviation in normalised units."""
        self.tile = whole("attack.start.tile", tile)
        self.deviation = number("attack.start.deviation", deviation, least=0)

    def draw(self, number: int, task: Task, generator: Generator) -> Tensor:
        """Draw tiles and repeat them."""
        channels, height, width = task.input_shape
        tiles = torch.randn(number, channels, self.tile, self.tile, generator=generator)
        repeats = (1, 1, -(-height // self.tile), -(-width // self.tile))
        return self.deviation * tiles.repeat(repeats)[:, :, :height, :width].contiguous()
