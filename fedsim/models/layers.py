"""Layers that several models share: input normalisation, activations by name."""

import torch
from torch import Tensor, nn

from fedsim.core.errors import FedsimError
from fedsim.core.settings import one_of
from fedsim.core.types import Task


class Square(nn.Module):
    """z^2: the gradients of a two-layer network with it show the span of its inputs, nothing more."""

    def forward(self, values: Tensor) -> Tensor:
        """Square."""
        return values.square()


class SquareCube(nn.Module):
    """z^2 + z^3: the simplest activation whose second and third moments both show the inputs."""

    def forward(self, values: Tensor) -> Tensor:
        """Add square and cube."""
        return values.square() * (1 + values)


ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
    "softplus": nn.Softplus,
    "elu": nn.ELU,
    "linear": nn.Identity,
    "square": Square,
    "square_cube": SquareCube,
}


def activation_layer(name: str) -> nn.Module:
    """Return the activation of this name."""
    return ACTIVATIONS[one_of("model.activation", name, ACTIVATIONS)]()


class Normalize(nn.Module):
    """The first layer of every model: pixels in [0, 1] to mean 0 and deviation 1 a channel."""

    mean: Tensor
    std: Tensor

    def __init__(self, task: Task) -> None:
        super().__init__()
        # Not persistent: they belong to the data, not to a checkpoint.
        self.register_buffer("mean", torch.tensor(task.mean).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(task.std).view(1, -1, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Normalise a batch of images."""
        return (images - self.mean) / self.std


def flat_size(layers: nn.Module, task: Task) -> int:
    """Return how many features `layers` give for one image."""
    with torch.no_grad():
        try:
            return int(layers(torch.zeros(1, *task.input_shape)).numel())
        except RuntimeError as error:
            raise FedsimError(
                f"the model does not fit images of shape {task.input_shape} ({error}). "
                "Remedy: larger images, or a model with fewer poolings."
            ) from error
