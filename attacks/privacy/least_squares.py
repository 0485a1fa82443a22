"""Least squares that gives the same bits every time."""

import torch
from torch import Tensor


def fit(matrix: Tensor, target: Tensor) -> Tensor:
    """Return the smallest X with matrix X nearest to the target, by singular values.

    torch's default driver, LAPACK's gelsy, gives other last digits from call to call.
    """
    found: Tensor = torch.linalg.lstsq(matrix, target, driver="gelsd").solution
    return found
