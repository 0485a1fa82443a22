"""Exact forgeries whose pixels stay in [0, 1]: one pattern, added to each image in its own strength.

What it gains: an update that is equal to rounding, from real pixels in the box and the same classes.
Paper: none; an answer to a question that Suliman et al., Towards a Re-evaluation of Data Forging Attacks
    in Practice (2024), leave open. P = q p^T with D^T p = 0 and W q = 0 satisfies their equation 12, and
    bounds on pixels are bounds on p and q: two small linear programs.
Assumes: a fully connected network with few units in its first layer (softmax regression), more examples.
Caught by: asking for whole grey levels; pixels that are dark in all data light up.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linprog

from fedsim.attacks.integrity.forging.first_layer import FirstLayer, basis, first_layer
from fedsim.core.challenges import Challenge
from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Forgery
from fedsim.core.settings import number
from fedsim.core.training import Batch

Vector = NDArray[np.float64]
MARGIN = 1e-6  # to the bounds, of entries that may still be moved


class Box(Forgery):
    """Adds a pattern that the model does not see, in strengths that its errors cancel."""

    pixels = "box"

    def __init__(self, *, size: float = 1.0) -> None:
        """Set how much of the room between the pixels and their bounds to use."""
        self.size = number("forgery.size", size, above=0, most=1)

    def forge(self, challenge: Challenge) -> Batch:
        """Find strengths and a pattern, and add them."""
        batch = challenge.batch
        layer = first_layer(challenge.model, batch)
        pixels = batch.images.double().flatten(1).numpy()
        strengths = balanced_strengths(layer, challenge.unwanted.numpy())
        low, high = room(pixels, strengths)
        weights = torch.rand(len(low), generator=challenge.generator, dtype=torch.float64).numpy()
        pattern = self.size * unseen_pattern(layer, low, high, weights)
        images = np.clip(pixels + np.outer(strengths, pattern), 0.0, 1.0)
        found = torch.from_numpy(images).view(batch.images.shape).to(batch.images.dtype)
        return Batch(images=found, labels=batch.labels)


def balanced_strengths(layer: FirstLayer, unwanted: NDArray[np.int64]) -> Vector:
    """Return p with errors^T p = 0: all at least 0 if that is possible, else with few below.

    Unwanted examples get some strength if that is possible too.
    """
    columns = (layer.errors @ basis(layer.errors.T)).numpy()  # independent equations
    number, equations = columns.shape
    if equations >= number:
        raise no_freedom(f"errors of rank {equations} on {number} examples")
    for least in (0.02, 0.0):
        low = np.zeros(number)
        low[unwanted] = least
        bounds = np.stack([low, np.ones(number)], axis=1)
        found = linprog(-np.ones(number), A_eq=columns.T, b_eq=np.zeros(equations), bounds=bounds)
        if found.success and found.x.max() > 0.1:
            return _exact(found.x, columns, low, np.ones(number))
    # A class that no example has is wrong for all of them: somebody has to get weaker. As few as can be.
    halves = np.vstack([np.hstack([columns.T, -columns.T]), np.repeat([1.0, 0.0], number)])
    sums = np.append(np.zeros(equations), number / 4)
    found = linprog(np.repeat([0.0, 1.0], number), A_eq=halves, b_eq=sums, bounds=(0, 1))
    signed = found.x[:number] - found.x[number:] if found.success else np.zeros(number)
    if np.abs(signed).max() < 0.1:
        raise no_freedom(f"no balance of errors of rank {equations} on {number} examples")
    return _exact(signed, columns, -np.ones(number), np.ones(number))


def room(pixels: Vector, strengths: Vector, white: float = 1.0) -> tuple[Vector, Vector]:
    """Return between which bounds a pattern, times the strengths, leaves pixels (batch, d) in [0, white]."""
    used = strengths != 0
    pixels, strengths = pixels[used], strengths[used, None]
    to_black, to_white = -pixels / strengths, (white - pixels) / strengths
    return np.minimum(to_black, to_white).max(axis=0), np.maximum(to_black, to_white).min(axis=0)


def unseen_pattern(layer: FirstLayer, low: Vector, high: Vector, weights: Vector) -> Vector:
    """Return q between bounds with weight q = 0, of large weighted sum."""
    rows = layer.free_weight
    equations = (basis(rows).T @ rows).numpy().T  # (pixels, independent equations)
    found = linprog(
        -weights,
        A_eq=equations.T,
        b_eq=np.zeros(equations.shape[1]),
        bounds=list(zip(low, high, strict=True)),
    )
    if not found.success or np.abs(found.x).max() < MARGIN:
        raise no_freedom("no pattern in the room that the pixels leave")
    return _exact(found.x, equations, low, high)


def _exact(point: Vector, equations: Vector, low: Vector, high: Vector) -> Vector:
    """Solve equations^T x = 0 to rounding near the program's solution, moving what is off its bounds."""
    free = (point > low + MARGIN) & (point < high - MARGIN)
    for _ in range(2):
        left = equations.T @ point
        point = point.copy()
        point[free] -= np.linalg.lstsq(equations[free].T, left, rcond=None)[0]
    return point


def no_freedom(what: str) -> FedsimError:
    """Return the complaint that a batch cannot be forged within bounds."""
    return FedsimError(
        f"forgery: {what}. Remedy: a larger batch with all classes in it, or fewer units in the first layer."
    )
