"""What the search moves: pixels, or coordinates in the span that a linear first layer's gradient betrays."""

import torch
from torch import Tensor, nn

from fedsim.attacks.privacy.matching.linear_layers import LinearLayer, input_span
from fedsim.core.errors import FedsimError
from fedsim.core.types import Task


class Pixels(nn.Module):
    """The pixels themselves, in the model's normalised units. A module, so that it moves like the model."""

    mean: Tensor
    std: Tensor
    black: Tensor
    white: Tensor

    def __init__(self, task: Task) -> None:
        """Prepare for the images of a task."""
        super().__init__()
        self.shape = task.input_shape
        self.register_buffer("mean", torch.tensor(task.mean).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(task.std).view(1, -1, 1, 1))
        self.register_buffer("black", -self.mean / self.std)
        self.register_buffer("white", (1 - self.mean) / self.std)

    def point(self, images: Tensor) -> Tensor:
        """Return the point that stands for images in normalised units."""
        return images.to(self.mean).clone(memory_format=torch.contiguous_format)

    def images(self, point: Tensor) -> Tensor:
        """Return the images in normalised units that a point stands for."""
        return point.view(-1, *self.shape)

    def pixels(self, images: Tensor) -> Tensor:
        """Return images in normalised units as pixels in [0, 1]."""
        return torch.addcmul(self.mean, images, self.std)

    def keep_inside(self, point: Tensor) -> None:
        """Move a point back to where pixels are in [0, 1]."""
        torch.clamp(point, self.black, self.white, out=point)


class Span(Pixels):
    """Coordinates of the images in the row space of a linear first layer's gradient.

    That gradient is a sum of outer products with the images, so they lie in its row space, and with the
    bias's gradient in an affine subspace of K - 1 dimensions: K (K - 1) unknowns in place of all pixels.
    """

    origin: Tensor
    basis: Tensor

    def __init__(self, task: Task, layer: LinearLayer, size: int) -> None:
        """Read the affine subspace from the first layer's gradient."""
        super().__init__(task)
        expect_image(layer.name, layer.task_shape is not None)
        layer.expect_room(size)
        origin, basis = input_span(layer, size)
        self.register_buffer("origin", origin)
        self.register_buffer("basis", basis)

    def point(self, images: Tensor) -> Tensor:
        """Return the coordinates of the nearest images in the span."""
        return (images.to(self.origin).flatten(1) - self.origin) @ self.basis.T

    def images(self, point: Tensor) -> Tensor:
        """Return the images in normalised units that coordinates stand for."""
        return (point @ self.basis + self.origin).view(-1, *self.shape)

    def keep_inside(self, point: Tensor) -> None:
        """Do nothing: the span alone holds the images."""


def expect_image(layer: str, enters: bool) -> None:
    """Refuse a first linear layer that the images do not enter: its gradient spans features."""
    if not enters:
        raise FedsimError(
            f"attack.parametrisation=span: the images do not enter linear layer {layer!r} directly. "
            "Remedy: attack.parametrisation=pixels, or a fully connected model."
        )
