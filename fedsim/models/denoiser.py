"""A small denoiser of images: what pictures look like, learnt from public ones, as a prior for attacks.

Papers: Ronneberger et al., U-Net (MICCAI 2015); Karras et al., Elucidating the Design Space of
Diffusion-Based Generative Models (NeurIPS 2022) for how input and output are scaled by the noise.
"""

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional

SPREAD = 0.5  # of images in [-1, 1], roughly: what the scaling assumes
REDUCTION = 8  # the coarsest of the four resolutions: sides are padded to a multiple of it


def loss_weight(deviation: Tensor) -> Tensor:
    """Return the weight of a squared error at a level of noise that makes all levels count alike."""
    level = 2 * deviation
    return 4 * (level.square() + SPREAD**2) / (level * SPREAD).square()


class Denoiser(nn.Module):
    """A U-Net that returns the mean of the images, in [0, 1], that could be behind a noisy one."""

    def __init__(self, channels: int, width: int = 32) -> None:
        """Make one for images of so many channels; width: channels at half the resolution."""
        super().__init__()
        self.channels, self.width = channels, width
        inside = (width, 2 * width, 3 * width)
        self.enter = nn.Conv2d(4 * channels + 1, width, 3, padding=1)
        self.down = nn.ModuleList(Block(size) for size in inside)
        self.shrink = nn.ModuleList(
            nn.Conv2d(fine, coarse, 2, stride=2) for fine, coarse in itertools.pairwise(inside)
        )
        self.grow = nn.ModuleList(
            nn.ConvTranspose2d(coarse, fine, 2, stride=2) for fine, coarse in itertools.pairwise(inside)
        )
        self.up = nn.ModuleList(Block(size) for size in inside)
        self.leave = nn.Conv2d(width, 4 * channels, 3, padding=1)
        nn.init.zeros_(self.leave.weight)

    def forward(self, noisy: Tensor, deviation: Tensor) -> Tensor:
        """Return the images behind noisy ones (N, C, H, W); deviation: (N,) of the noise."""
        level = (2 * deviation).view(-1, 1, 1, 1).to(noisy)
        centred, scale = 2 * noisy - 1, (level.square() + SPREAD**2).sqrt()
        kept, moved = SPREAD**2 / scale.square(), level * SPREAD / scale
        height, width = noisy.shape[-2:]
        padding = (0, -width % REDUCTION, 0, -height % REDUCTION)
        inside = functional.pad(centred / scale, padding, mode="replicate")
        told = (level.log() / 4).expand(-1, 1, inside.shape[2] // 2, inside.shape[3] // 2)
        found = self._inside(torch.cat([functional.pixel_unshuffle(inside, 2), told], dim=1))
        change = functional.pixel_shuffle(found, 2)[..., :height, :width]
        return (kept * centred + moved * change + 1) / 2

    def _inside(self, now: Tensor) -> Tensor:
        now, passed = self.enter(now), list[Tensor]()
        for number, block in enumerate(self.down):
            now = block(now)
            if number < len(self.shrink):
                passed.append(now)
                now = self.shrink[number](now)
        for number in reversed(range(len(self.up))):
            if number < len(self.grow):
                now = self.grow[number](now) + passed[number]
            now = self.up[number](now)
        left: Tensor = self.leave(now)
        return left


class Block(nn.Module):
    """Two convolutions, added to what enters."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(size, size, 3, padding=1)
        self.second = nn.Conv2d(size, size, 3, padding=1)

    def forward(self, now: Tensor) -> Tensor:
        """Return what enters, changed a little."""
        changed: Tensor = self.second(functional.silu(self.first(functional.silu(now))))
        return now + changed
