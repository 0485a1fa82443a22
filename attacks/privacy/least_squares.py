"""Least squares that gives the same bits every time."""

import torch
from torch import Tensor

from fedsim.core.errors import FedsimError


def fit(matrix: Tensor, target: Tensor) -> Tensor:
    """Return the smallest X with matrix X nearest to the target, by singular values.

    torch's default driver, LAPACK's gelsy, gives other last digits from call to call.
    """
    if not bool(torch.isfinite(matrix).all() and torch.isfinite(target).all()):
        raise FedsimError(
            "numbers that are not finite: the gradient is rounded or defended too much to be read"
        )
    found: Tensor = torch.linalg.lstsq(matrix, target, driver="gelsd").solution
    return found
