"""Forgeries in whole grey levels: pattern and strengths of `box` as integers, found by lattice reduction.

What it gains: an ordinary batch (uint8 pixels, one class each) whose update differs from the real one by less
    than two machines differ.
Paper: none; Suliman et al., Towards a Re-evaluation of Data Forging Attacks in Practice (2024), conjecture
    that this is infeasible. Lenstra, Lenstra and Lovasz (1982) reduce the lattice of integer vectors with
    their residuals beside them; Babai (1986) finds the one nearest to a point inside the bounds.
Assumes: softmax regression, some six examples of every class, pixels with room. A class that is missing, or a
    hidden layer of some 30 units, would need patterns that weaken some images: black pixels have no room.
Caught by: a delta of exact recomputation; pixels that are dark in all data light up.
"""

from typing import Any

import flint
import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linprog

from fedsim.attacks.integrity.forging.box import Vector, no_freedom, room
from fedsim.attacks.integrity.forging.first_layer import basis, first_layer
from fedsim.core.challenges import Challenge
from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Forgery
from fedsim.core.settings import optional, whole
from fedsim.core.training import Batch

Whole = NDArray[np.int64]
MOST = 110  # unknowns of a lattice: more cost time, and give no smaller residuals within bounds
STRENGTHS = (
    4,
    6,
    8,
    12,
    16,
)  # greatest multiples of a pattern to choose from: larger ones leave patterns too coarse
USUAL = 0.6  # of the greatest strength: the strengths that limit a pattern
SMALL = 1e-3  # shares below are none
FINEST = 16  # decimals of residuals that are asked for at most
UNIT = 64.0  # whole steps from an entry's centre to its bound
TARGETS = 64  # points near the centre whose nearest lattice points are looked at


class Lattice(Forgery):
    """Adds whole multiples of a whole pattern to images, so that errors and units stay as they were."""

    pixels = "uint8"

    def __init__(self, *, strength: int | None = None, tries: int = 3) -> None:
        """Set the greatest multiple of the pattern in an image, and how many sets of pixels to try.

        strength None: the one that leaves as much choice in strengths as in patterns, by the pixels' room.
        """
        self.strength = optional(whole, "forgery.strength", strength, 2)
        self.tries = whole("forgery.tries", tries)

    def forge(self, challenge: Challenge) -> Batch:
        """Find whole strengths and patterns, and keep those with the smallest residual."""
        batch = challenge.batch
        layer = first_layer(challenge.model, batch)
        levels = torch.round(batch.images.double().flatten(1) * 255).numpy().astype(np.int64)
        errors = (layer.errors @ basis(layer.errors.T)).numpy()
        rows = layer.free_weight
        weights = (basis(rows).T @ rows).numpy().T
        chance = np.random.default_rng(int(torch.randint(2**62, (), generator=challenge.generator)))
        unwanted = challenge.unwanted.numpy()
        others = np.setdiff1d(np.arange(len(levels)), unwanted)
        places = np.concatenate([unwanted, chance.permutation(others)])[:MOST]
        if len(unwanted) > MOST:
            raise FedsimError(
                f"forgery=[lattice]: expected at most {MOST} unwanted examples, got {len(unwanted)}. "
                "Remedy: a smaller batch or fraction."
            )
        number = number_of_pixels(weights.shape[1])
        top = self.strength or balanced_strength(levels[places], errors.shape[1], weights.shape[1], number)
        strengths = np.zeros(len(levels), dtype=np.int64)
        strengths[places] = whole_strengths(errors[places], np.isin(places, unwanted), top, chance)
        if not strengths.any():
            raise no_freedom("no whole strengths that cancel the errors")
        low, high = room(levels.astype(np.float64), strengths.astype(np.float64), 255.0)
        low, high = np.ceil(low), np.floor(high)
        best, smallest = None, np.inf
        for _ in range(self.tries):
            # Pixels with the most room, a few more than needed, so that tries differ.
            rank = np.argsort(-(high - low) + chance.random(len(low)))[: 2 * number]
            chosen = chance.permutation(rank[(high - low)[rank] >= 1])[:number]
            if len(chosen) <= weights.shape[1]:
                raise no_freedom(f"{len(chosen)} pixels have room for whole grey levels")
            pattern = np.zeros(len(low), dtype=np.int64)
            pattern[chosen] = integer_solution(weights[chosen], low[chosen], high[chosen], chance)
            residual = float(np.linalg.norm(weights.T @ pattern))
            if pattern.any() and residual < smallest:
                best, smallest = pattern, residual
        if best is None:
            raise no_freedom("no whole pattern within the bounds of pixels")
        forged = torch.from_numpy(levels + np.outer(strengths, best)).view(batch.images.shape)
        return Batch(images=forged.to(batch.images.dtype).div_(255), labels=batch.labels)


def number_of_pixels(equations: int) -> int:
    """Return how many pixels to look for a pattern in: more equations need more unknowns, which cost time."""
    return max(MOST, 8 * equations)


def balanced_strength(levels: Whole, of_errors: int, of_weights: int, number: int) -> int:
    """Return the greatest multiple that leaves strengths and patterns as much choice for each equation."""

    def choice(strength: int) -> float:
        usual = USUAL * strength
        widths = np.floor((255 - levels) / usual).min(axis=0) + np.floor(levels / usual).min(axis=0)
        bits = np.sort(np.log2(1 + widths))[::-1][:number].sum()
        return float(min(len(levels) * np.log2(strength) / of_errors, bits / of_weights))

    return max(STRENGTHS, key=choice)


def whole_strengths(
    errors: Vector, needed: NDArray[np.bool_], top: int, chance: np.random.Generator
) -> Whole:
    """Return whole strengths from 0 to a greatest one that cancel errors: at least 1 where needed."""
    used = positive_support(errors, needed, top)
    columns = errors[used] @ basis(torch.from_numpy(errors[used].T)).numpy()
    strengths = np.zeros(len(errors), dtype=np.int64)
    high = np.full(int(used.sum()), float(top))
    strengths[used] = integer_solution(columns, needed[used].astype(np.float64), high, chance)
    return strengths


def positive_support(errors: Vector, needed: NDArray[np.bool_], top: int) -> NDArray[np.bool_]:
    """Say which examples can have a strength above 0 in a balance of strengths from 0, or 1 where needed."""
    number, equations = errors.shape
    found = linprog(  # as many shares of at most 1 as can be, each below its strength
        np.append(np.zeros(number), -np.ones(number)),
        A_ub=np.hstack([-np.eye(number), np.eye(number)]),
        b_ub=np.zeros(number),
        A_eq=np.hstack([errors.T, np.zeros((equations, number))]),
        b_eq=np.zeros(equations),
        bounds=[(float(must), top) for must in needed] + [(0, 1)] * number,
    )
    if not found.success:
        raise no_freedom(f"no strengths from 1 to {top} cancel the errors of {int(needed.sum())} examples")
    return needed | np.asarray(found.x[number:] > SMALL, dtype=np.bool_)


def integer_solution(equations: Vector, low: Vector, high: Vector, chance: np.random.Generator) -> Whole:
    """Return a whole x between bounds, not 0, with equations^T x as near to 0 as lattice reduction gets it.

    Lattice points are whole vectors, each entry in units of its distance to the bounds, with their residuals
    beside them. Finer and finer residuals are asked for until points near the centre leave the bounds.
    """
    centre = analytic_centre(equations, low, high)
    units = np.round(UNIT / np.maximum(np.minimum(centre - low, high - centre), 0.5))
    vectors = np.eye(len(low), dtype=object)
    best, smallest, failed = np.zeros(len(low), dtype=np.int64), np.inf, 0
    for fineness in range(2, 2 * FINEST):
        scaled = _whole(np.round(equations * UNIT * 10.0 ** (fineness / 2)))
        rows = np.hstack([vectors * _whole(units), vectors @ scaled])
        reduced = _whole(np.array(flint.fmpz_mat(rows.tolist()).lll().tolist(), dtype=object))
        vectors = reduced[:, : len(low)] // _whole(units)
        targets = centre + chance.uniform(-0.5, 0.5, (TARGETS, len(low))) * (np.arange(TARGETS) > 0)[:, None]
        goals = np.hstack([targets * units, np.zeros((TARGETS, equations.shape[1]))])
        points = np.round(nearest_points(reduced.astype(float), goals)[:, : len(low)] / units).astype(
            np.int64
        )
        inside = ((points >= low) & (points <= high)).all(axis=1) & points.any(axis=1)
        residuals = np.linalg.norm(points @ equations, axis=1)
        residuals[~inside] = np.inf
        place = int(residuals.argmin())
        if residuals[place] < smallest:
            best, smallest = points[place], float(residuals[place])
        failed = 0 if inside.any() else failed + 1
        if failed == 2:
            break
    return best


def nearest_points(rows: Vector, targets: Vector) -> Vector:
    """Return lattice points near each target: Babai's nearest planes, for a reduced basis in rows."""
    directions, _ = np.linalg.qr(rows.T)
    heights = np.einsum("ij,ji->i", rows, directions)
    points = np.zeros_like(targets)
    for place in range(len(rows) - 1, -1, -1):
        counts = np.round((targets - points) @ directions[:, place] / heights[place])
        points += counts[:, None] * rows[place]
    return points


def analytic_centre(equations: Vector, low: Vector, high: Vector) -> Vector:
    """Return the real solution with the largest product of distances to its bounds."""
    number, unknowns = equations.shape[1], len(low)
    width = high - low
    found = linprog(  # as far from all bounds as can be, in units of their distance: a point to begin with
        np.append(np.zeros(unknowns), -1.0),
        A_ub=np.block([[np.eye(unknowns), width[:, None]], [-np.eye(unknowns), width[:, None]]]),
        b_ub=np.concatenate([high, -low]),
        A_eq=np.hstack([equations.T, np.zeros((number, 1))]),
        b_eq=np.zeros(number),
        bounds=[(None, None)] * unknowns + [(0, None)],
    )
    if not found.success or found.x[-1] < 1e-6:
        raise no_freedom("no solution inside the bounds")
    point = np.asarray(found.x[:unknowns])
    for _ in range(50):  # Newton on the sum of logarithms, along the solutions
        slope = 1 / (point - low) - 1 / (high - point)
        spread = 1 / (1 / (point - low) ** 2 + 1 / (high - point) ** 2)
        bent = equations * spread[:, None]
        step = spread * slope - bent @ np.linalg.solve(equations.T @ bent, bent.T @ slope)
        reach = np.where(
            step > 0, (high - point) / np.maximum(step, 1e-300), (low - point) / np.minimum(step, -1e-300)
        )
        point = point + min(1.0, 0.9 * float(reach.min())) * step
        if np.abs(step).max() < 1e-6:
            break
    return point


def _whole(values: NDArray[Any]) -> NDArray[Any]:
    """Return whole numbers of any size: products in a lattice outgrow 64 bits."""
    return np.asarray(np.frompyfunc(int, 1, 1)(values))
