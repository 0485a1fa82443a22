"""Pairing guessed images with true ones: a batch has no order, so the best one-to-one pairing counts."""

from collections.abc import Callable

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from fedsim.core.errors import FedsimError
from fedsim.core.types import Reconstruction, Score, Truth

GREY = 0.5  # the image that a guess without any information shows
PSNR_CEILING = 200.0  # dB of equal images: an infinity would spoil every mean


def peak_signal_to_noise(guess: Tensor, truth: Tensor) -> Tensor:
    """Return the PSNR in dB of each pair of images in [0, 1], at most PSNR_CEILING."""
    error = (guess.double() - truth.double()).square().flatten(1).mean(1)
    return (-10 * error.clamp(min=1e-300).log10()).clamp(max=PSNR_CEILING)


def match_to_truth(guess: Tensor, truth: Tensor) -> Tensor:
    """Order the guesses so that they pair with the truth at the highest mean PSNR.

    Where there are fewer guesses than true images, the unmatched ones get a grey image.
    """
    guess = _with_grey(guess, truth)
    return guess[pairing(guess, truth)]


def pairing(guess: Tensor, truth: Tensor) -> Tensor:
    """Return the place of the guess that each true image is paired with; beyond the guesses: of none."""
    guess = _with_grey(guess, truth)
    quality = torch.stack([peak_signal_to_noise(guess, true.expand_as(guess)) for true in truth])
    return torch.from_numpy(linear_sum_assignment(quality.numpy(), maximize=True)[1])


def _with_grey(guess: Tensor, truth: Tensor) -> Tensor:
    if guess.shape[1:] != truth.shape[1:]:
        raise FedsimError(
            f"guessed images: expected shape {tuple(truth.shape[1:])}, got {tuple(guess.shape[1:])}"
        )
    guess = guess.detach().cpu().clamp(0, 1)
    missing = max(0, len(truth) - len(guess))
    return torch.cat([guess, torch.full((missing, *truth.shape[1:]), GREY, dtype=guess.dtype)])


def image_score(
    name: str,
    compare: Callable[[Tensor, Tensor], Tensor],
    guess: Reconstruction,
    truth: Truth,
    *,
    best: int | None = None,
    highest: bool = True,
) -> Score | None:
    """Score matched images with a per-image comparison.

    A true image without a guess counts as guessed grey. Guesses cost: every one beyond the number of true
    images counts as one more that was guessed grey, so that a thousand shots in the dark hit nothing.
    best: the mean of so many images that come out best, as some papers show; highest: more is better.
    """
    if guess.images is None:
        return None
    values = compare(match_to_truth(guess.images, truth.images), truth.images)
    number = len(values) if best is None else min(best, len(values))
    value = float(values.topk(number, largest=highest).values.mean())
    extra = max(0, len(guess.images) - len(values))
    if extra:
        nothing = float(compare(torch.full_like(truth.images, GREY), truth.images).mean())
        value = (value * len(values) + nothing * extra) / (len(values) + extra)
    return Score(
        metric=name if best is None else f"{name}_best{best}",
        value=value,
        per_example=tuple(values.tolist()),
    )
