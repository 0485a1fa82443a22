"""Trains a denoiser on public images, as a prior for attacks, and writes it with what it was learnt from."""

import copy
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsim.core import progress
from fedsim.core.errors import FedsimError
from fedsim.core.randomness import generator, undisturbed
from fedsim.data.public import fingerprints
from fedsim.models.denoiser import Denoiser, loss_weight
from fedsim.models.learnt_prior import FINGERPRINTS, digest
from fedsim.storage.files import write_whole
from fedsim.storage.tensors import tensor_bytes

LOWEST, HIGHEST = 0.015, 3.0  # noise that it learns to take away, in grey levels of 1
RATE, WARMUP, REMEMBERED = (
    2e-3,
    50,
    0.01,
)  # Adam's step, its first steps, share of each in the mean of weights
HELD_OUT = 0.1  # of the images, to say how well it does on others
MOVED = 8  # an image is moved by at most one in so many of its pixels
LEVELS = (0.03, 0.1, 0.3, 1.0)  # of noise, for that


def train_prior(
    images: Tensor, *, width: int, steps: int, batch_size: int, seed: int
) -> tuple[Denoiser, dict[str, float]]:
    """Train a denoiser; return it with its PSNR in dB on images that it did not see, by level of noise."""
    held = max(1, round(HELD_OUT * len(images)))
    if len(images) <= held:
        raise FedsimError(f"prior.size: expected at least 2 images, got {len(images)}")
    seen, others, random = images[held:], images[:held], generator(seed, "prior")
    with undisturbed():
        torch.manual_seed(seed)
        network = Denoiser(images.shape[1], width)
    mean = copy.deepcopy(network)
    optimiser = torch.optim.Adam(network.parameters(), lr=RATE)
    with progress.bar("prior", steps) as advance:
        for step in range(steps):
            for group in optimiser.param_groups:
                group["lr"] = RATE * min(1, (step + 1) / WARMUP) * (1 + math.cos(math.pi * step / steps)) / 2
            batch = varied(seen[torch.randint(len(seen), (batch_size,), generator=random)], random)
            spread = torch.rand(len(batch), generator=random)
            level = LOWEST * (HIGHEST / LOWEST) ** spread
            noisy = batch + level.view(-1, 1, 1, 1) * torch.randn(batch.shape, generator=random)
            errors = (network(noisy, level) - batch).square().flatten(1).mean(1)
            optimiser.zero_grad()
            (loss_weight(level) * errors).mean().backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimiser.step()
            with torch.no_grad():
                for kept, now in zip(mean.parameters(), network.parameters(), strict=True):
                    kept.lerp_(now, max(REMEMBERED, 1 / (step + 1)))
            advance(step + 1)
    return mean.eval(), {str(level): _denoised(mean, others, level) for level in LEVELS}


def varied(images: Tensor, random: torch.Generator) -> Tensor:
    """Return images mirrored or not, moved a little, darker or brighter, with more or less contrast."""
    flips = torch.rand(len(images), 1, 1, 1, generator=random) < 0.5
    images = torch.where(flips, images, images.flip(3))
    height, width = images.shape[-2:]
    down, right = height // MOVED, width // MOVED
    wide = functional.pad(images, (right, right, down, down), mode="reflect")
    places = torch.rand(len(images), 2, generator=random) * torch.tensor([2 * down + 1, 2 * right + 1])
    moved = [
        each[:, top : top + height, left : left + width]
        for each, (top, left) in zip(wide, places.long().tolist(), strict=True)
    ]
    stacked = torch.stack(moved)
    middle = stacked.mean(dim=(1, 2, 3), keepdim=True)
    contrast = 0.7 + 0.6 * torch.rand(len(images), 1, 1, 1, generator=random)
    brightness = 0.2 * (torch.rand(len(images), 1, 1, 1, generator=random) - 0.5)
    return ((stacked - middle) * contrast + middle + brightness).clamp(0, 1)


def write_prior(
    path: Path, network: Denoiser, images: Tensor, denoised: dict[str, float], **told: Any
) -> None:
    """Write a prior in half precision, with what it was learnt from; a file that is there stays."""
    if path.exists():
        raise FedsimError(f"{path} is there already. Remedy: another prior.file, or remove it.")
    notes = {
        **told,
        "size": len(images),
        "digest": digest(images),
        "channels": network.channels,
        "width": network.width,
        "side": images.shape[-1],
        "denoised": denoised,
    }
    weights = {name: tensor.half() for name, tensor in network.state_dict().items()}
    write_whole(path, tensor_bytes({**weights, FINGERPRINTS: fingerprints(images)}, notes))


def _denoised(network: Denoiser, images: Tensor, level: float) -> float:
    noisy = images + level * torch.randn(images.shape, generator=generator(0, "noisy"))
    with torch.no_grad():
        clean = network(noisy, torch.full((len(images),), level))
    errors = (clean - images).square().flatten(1).mean(1)
    return round(float(-10 * errors.log10().mean()), 2)
