"""Exact errors of networks with ReLUs: which side of its kink each unit is on, from an example nearby.

Between kinks the error of an example is J e: J, the slopes of the logits by the layer's outputs, does not
change, and e, the error of the logits, has C - 1 unknowns. The one e whose J e lies in the column space is
a singular vector.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedsim.attacks.privacy.exact.behind import Behind
from fedsim.attacks.privacy.exact.spaces import Spaces

ROUNDS = 30  # of corrections before an example is given up
SLACK = 0.02  # of the largest entry of e: so far noise may push a small one below zero
DEAD = 1e-9  # length of an error against the slopes behind it below which there is none
MOVES = 4  # of the example itself, where the slopes behind the first activation depend on it


@dataclass(frozen=True, kw_only=True, eq=False)
class KinkedErrors:
    """Errors (N, units) of length 1, with their labels, and how far each is from the column space."""

    errors: Tensor
    labels: Tensor
    residuals: Tensor
    contrasts: Tensor  # the residual of e against that of the next best e
    valid: Tensor  # whether e is positive but for one class, as p - e_y is


def kinked_errors(spaces: Spaces, behind: Behind, points: Tensor) -> KinkedErrors:
    """Find the exact errors of the examples near these points."""
    act = behind.steps[0][0]
    ends = torch.tensor([-1.0, 1.0], dtype=points.dtype)
    low, high = (act(2 * ends) - act(ends)).mul(ends)  # slopes beside the kink
    outputs = spaces.outputs(points)
    slopes, behind_slopes = behind.slopes(outputs)
    for _ in range(MOVES if len(behind.steps) > 1 else 1):
        for _ in range(ROUNDS):
            found, values, _ = _nearest(spaces, slopes, behind_slopes)
            inside = found - spaces.outside(found)
            corrected = torch.where((inside - high * values).abs() < (inside - low * values).abs(), high, low)
            if torch.equal(corrected, slopes):
                break
            slopes = corrected
        if len(behind.steps) > 1:  # masks further behind follow the example to the right side of its kinks
            wrong = (outputs > 0) != (slopes == high)
            outputs = spaces.outputs(spaces.points(torch.where(wrong, -outputs, outputs)))
            behind_slopes = behind.slopes(outputs)[1]
    errors, _, (logit_errors, contrasts) = _nearest(spaces, slopes, behind_slopes)
    # p - e_y is the error of one class against small ones of all others: the largest entry is that of y.
    sign = -logit_errors.gather(1, logit_errors.abs().argmax(dim=1, keepdim=True)).sign()
    turned, errors = sign * logit_errors, sign * errors
    smallest = turned.topk(2, dim=1, largest=False).values
    lengths = errors.norm(dim=1, keepdim=True)
    dead = lengths[:, 0] < DEAD * behind_slopes.norm(dim=(1, 2))  # no unit fires: nothing lies nowhere
    lengths = lengths.clamp(min=1e-300)
    return KinkedErrors(
        errors=errors / lengths,
        labels=turned.argmin(dim=1),
        residuals=torch.where(dead, 1.0, (spaces.outside(errors).norm(dim=1, keepdim=True) / lengths)[:, 0]),
        contrasts=contrasts,
        valid=smallest[:, 1] > -SLACK * smallest[:, 0].abs(),
    )


def _nearest(
    spaces: Spaces, slopes: Tensor, behind_slopes: Tensor
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    """Return J e nearest to the columns, the same before the first activation's slopes, e, contrast."""
    classes = behind_slopes.shape[2]
    sumless = torch.linalg.qr(torch.eye(classes, dtype=slopes.dtype) - 1 / classes)[0][:, : classes - 1]
    whole = behind_slopes @ sumless
    masked = slopes[:, :, None] * whole
    outside = masked - spaces.columns @ (spaces.columns.T @ masked)
    sizes, vectors = torch.linalg.eigh(outside.mT @ outside)
    best = vectors[:, :, :1]
    contrasts = (sizes[:, 0].clamp(min=0) / sizes[:, 1].clamp(min=1e-300)).sqrt()
    return (masked @ best)[:, :, 0], (whole @ best)[:, :, 0], ((sumless @ best)[:, :, 0], contrasts)
