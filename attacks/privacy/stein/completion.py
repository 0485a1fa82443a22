"""Gradients with holes: what a sparsifying client sends is completed as the low-rank matrix that it was."""

import torch
from torch import Tensor

SWEEPS = 300
ENOUGH = 1e-9  # relative change of the known entries' misfit that ends the sweeps
ENTRIES = 2  # for each unknown of a column that is left to its known entries
SMALL = 0.01  # weight of a missing entry as a zero, where the known ones are too few


def complete(matrix: Tensor, known: Tensor, rank: int) -> Tensor:
    """Return the matrix of this rank nearest to the known entries.

    In columns with fewer entries than unknowns, those that are missing are taken to be small.
    """
    enough = known.sum(0) >= ENTRIES * rank
    if int(enough.sum()) < rank:
        enough = torch.ones_like(enough)
    left, right = factors(matrix[:, enough], known[:, enough].to(matrix.dtype), rank)
    whole = matrix.new_zeros(matrix.shape)
    whole[:, enough] = left @ right
    rest = (~enough).nonzero()[:, 0]
    if len(rest):
        weight = known[:, rest].to(matrix.dtype).clamp(min=SMALL)
        whole[:, rest] = left @ _solve(matrix[:, rest].T, weight.T, left.T).T
    return whole


def factors(matrix: Tensor, weight: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return left (m, r) and right factor (r, d) of the weighted entries, by alternating least squares."""
    right: Tensor = torch.linalg.svd(matrix, full_matrices=False)[2][:rank]
    total, before = float((matrix * weight).square().sum()), float("inf")
    for _ in range(SWEEPS):
        left = torch.linalg.qr(_solve(matrix, weight, right))[0]
        right = torch.linalg.qr(_solve(matrix.T, weight.T, left.T))[0].T
        left = _solve(matrix, weight, right)
        misfit = float(((left @ right - matrix) * weight).square().sum()) / total
        if misfit > before * (1 - ENOUGH) or misfit < 1e-15:
            break
        before = misfit
    return left, right


def _solve(matrix: Tensor, weight: Tensor, rows: Tensor) -> Tensor:
    """Return the left factor that fits the weighted entries best, row by row."""
    rank = len(rows)
    pairs = (rows[:, None] * rows[None]).flatten(0, 1)  # (r^2, columns)
    square = (weight @ pairs.T).view(-1, rank, rank)
    ridge = 1e-10 * square.diagonal(dim1=1, dim2=2).mean(1).clamp(min=1e-30)
    square = square + ridge[:, None, None] * torch.eye(rank, dtype=matrix.dtype)
    solution: Tensor = torch.linalg.solve(square, (matrix * weight) @ rows.T)
    return solution
