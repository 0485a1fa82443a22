"""A decoder-only transformer that classifies sequences of bytes.

Paper: Vaswani et al., Attention Is All You Need (NeurIPS 2017); norms before layers as in GPT-2 (2019).
"""

from collections import OrderedDict
from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsim.core.errors import FedsimError
from fedsim.core.settings import whole
from fedsim.core.types import Task


def transformer(task: Task, *, depth: int = 5, width: int = 96, heads: int = 4) -> nn.Module:
    """Decoder-only transformer over bytes: causal attention, learned positions, the mean classified.

    596,450 parameters for 128 bytes and two classes. Pixels are read as bytes, so no gradient flows
    to them: an attack that searches images by their gradient finds nothing to follow.
    """
    whole("model.depth", depth)
    if whole("model.width", width) % whole("model.heads", heads):
        raise FedsimError(f"model: expected heads that divide the width, got width={width}, heads={heads}")
    blocks = {f"block{number}": Block(width, heads) for number in range(1, depth + 1)}
    return nn.Sequential(
        OrderedDict(
            bytes=Bytes(),
            embed=Embed(prod(task.input_shape), width),
            **blocks,
            norm=nn.LayerNorm(width),
            mean=Mean(),
            output=nn.Linear(width, task.num_classes),
        )
    )


class Bytes(nn.Module):
    """The first layer in place of a normalisation: pixels in [0, 1] to bytes, one a position."""

    def forward(self, images: Tensor) -> Tensor:
        """Return whole numbers (N, C x H x W)."""
        return images.flatten(1).mul(255).round().clamp(0, 255).long()


class Embed(nn.Module):
    """A learned vector for each byte, and one for each position."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.byte = nn.Embedding(256, width)
        self.position = nn.Parameter(torch.empty(length, width))
        nn.init.normal_(self.byte.weight, std=0.02)
        nn.init.normal_(self.position, std=0.02)

    def forward(self, values: Tensor) -> Tensor:
        """Return vectors (N, length, width)."""
        embedded: Tensor = self.byte(values)
        return embedded + self.position


class Block(nn.Module):
    """Causal self-attention, then two layers on each position, both beside a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.attend = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, values: Tensor) -> Tensor:
        """Return the block's output; a position depends on itself and on earlier ones alone."""
        number, length, width = values.shape
        parts = self.attend(self.norm1(values)).view(number, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        values = values + self.project(mixed.transpose(1, 2).reshape(number, length, width))
        fed: Tensor = self.feed(self.norm2(values))
        return values + fed


class Mean(nn.Module):
    """The mean over positions."""

    def forward(self, values: Tensor) -> Tensor:
        """Return (N, width)."""
        return values.mean(dim=1)
