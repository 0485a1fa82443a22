"""Whether a model normalises its images as the task says: what an exact attack finds is in those units."""

import torch
from torch import Tensor

from fedsim.core.errors import FedsimError
from fedsim.core.types import Task

CLOSE = 1e-5  # of float32, in normalised units


def enters_as_image(probe: Tensor, entering: Tensor, task: Task) -> bool:
    """Say whether what enters a layer is the image as the task normalises it, or something else: features.

    An image that is normalised in another way is refused: it would pass for features.
    """
    if entering.shape[1:].numel() != probe[0].numel():
        return False
    mean, std = (torch.tensor(values).view(1, -1, 1, 1).to(probe) for values in (task.mean, task.std))
    if torch.allclose(entering.flatten(1), ((probe - mean) / std).flatten(1), atol=CLOSE):
        return True
    if (found := _normalisation(probe, entering.view_as(probe))) is not None:
        said = f"mean={_figures(found[0])}, std={_figures(found[1])}"
        raise FedsimError(
            f"the model normalises its images otherwise than the task says: expected mean={task.mean}, "
            f"std={task.std}, got {said}. Remedy: Task(..., {said})."
        )
    return False


def _normalisation(probe: Tensor, entering: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return mean and deviation of each channel that turn one batch into the other; None: none do."""
    if probe[0, 0].numel() < 2:  # a line goes through any two points
        return None
    before, after = (batch.double().transpose(0, 1).flatten(1) for batch in (probe, entering))
    centred = before - before.mean(1, keepdim=True)
    slope = (centred * after).sum(1) / centred.square().sum(1)
    level = after.mean(1) - slope * before.mean(1)
    gap = (slope[:, None] * before + level[:, None] - after).abs().max()
    if float(slope.min()) <= 0 or float(gap) > CLOSE * max(1.0, float(after.abs().max())):
        return None
    return -level / slope, 1 / slope


def _figures(values: Tensor) -> tuple[float, ...]:
    shown = [float(f"{value + 0.0:.4g}") for value in values.round(decimals=6).tolist()]
    return tuple(shown[:1] if len(set(shown)) == 1 else shown)
