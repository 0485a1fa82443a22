"""What is left of a layer's gradient when some examples' errors are known, and the inputs that follow.

G = D^T X. Errors are projected out from the left: the rows of what is left span the inputs that are left, and
nothing needs to be known of the inputs of the others.
"""

import torch
from torch import Tensor

from fedsim.attacks.privacy.least_squares import fit


def deflated(gradient: Tensor, errors: Tensor) -> Tensor:
    """Return the gradient without these errors (found, units)."""
    if not len(errors):
        return gradient
    known = torch.linalg.qr(errors.T)[0]
    left: Tensor = gradient - known @ (known.T @ gradient)
    return left


def solved_inputs(gradient: Tensor, errors: Tensor, near: Tensor, ones: Tensor) -> tuple[Tensor, Tensor]:
    """Return the inputs [x | 1] of these errors, and the lengths of their errors in the gradient.

    near: the inputs as a search knows them, in coordinates of the gradient's rows; ones: what reads their 1.
    With all errors known, X = D^+ G. With some missing, it follows but for the span of the inputs that are
    missing, and there the search's own points stand in.
    """
    size = gradient.shape[1]
    missing = near.new_empty(0, size)
    if len(errors) < size:
        missing = torch.linalg.svd(deflated(gradient, errors), full_matrices=False)[2][: size - len(errors)]
    beside = torch.eye(size, dtype=near.dtype) - missing.T @ missing
    scaled = fit(errors.T, gradient @ beside)
    if not len(missing):
        lengths = scaled @ ones
        return scaled / lengths[:, None], lengths
    shadows = near @ beside
    lengths = (scaled * shadows).sum(dim=1) / shadows.square().sum(dim=1).clamp(min=1e-300)
    lengths = torch.where(lengths.abs() > 0, lengths, torch.ones_like(lengths))
    found = scaled / lengths[:, None] + near @ missing.T @ missing
    last = found @ ones
    usable = (last.abs() > 0.1)[:, None] & found.isfinite().all(dim=1, keepdim=True)
    return torch.where(usable, found / last[:, None], near), lengths
