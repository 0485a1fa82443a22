"""Gradients with holes: what a sparsifying client sends is completed as the low-rank matrix that it was."""

import torch
from torch import Tensor

SWEEPS = 300
ENOUGH = 1e-9  # relative change of the known entries' misfit that ends the sweeps


def complete(matrix: Tensor, known: Tensor, rank: int) -> Tensor:
    """Return the matrix of this rank nearest to the known entries, by alternating least squares."""
    weight = known.to(matrix.dtype)
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    left, right = left[:, :rank] * values[:rank], right[:rank]
    total, before = float((matrix * weight).square().sum()), float("inf")
    for _ in range(SWEEPS):
        left = _solve(matrix, weight, right)
        right = torch.linalg.qr(_solve(matrix.T, weight.T, torch.linalg.qr(left)[0].T))[0].T
        left = _solve(matrix, weight, right)
        misfit = float(((left @ right - matrix) * weight).square().sum()) / total
        if misfit > before * (1 - ENOUGH) or misfit < 1e-15:
            break
        before = misfit
    completed: Tensor = left @ right
    return completed


def _solve(matrix: Tensor, weight: Tensor, rows: Tensor) -> Tensor:
    """Return the left factor that fits the known entries best, row by row."""
    rank = len(rows)
    pairs = (rows[:, None] * rows[None]).flatten(0, 1)  # (r^2, columns)
    square = (weight @ pairs.T).view(-1, rank, rank)
    ridge = 1e-10 * square.diagonal(dim1=1, dim2=2).mean(1).clamp(min=1e-30)
    square = square + ridge[:, None, None] * torch.eye(rank, dtype=matrix.dtype)
    solution: Tensor = torch.linalg.solve(square, (matrix * weight) @ rows.T)
    return solution
