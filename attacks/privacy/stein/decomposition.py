"""The vectors behind a stack of symmetric matrices M_k = X diag(w_k) X^T: slices of moment tensors."""

import contextlib
import warnings

import tensorly
import torch
from tensorly.decomposition import parafac
from torch import Tensor

from fedsim.attacks.privacy.least_squares import fit

TRIES = 30  # random contractions, of which the best fit is taken


def decompose(tensor: Tensor, reference: Tensor | None, iterations: int, random: torch.Generator) -> Tensor:
    """Return unit vectors as columns (B, B) whose powers add up to a symmetric tensor of order 3 or 4.

    Two candidates: simultaneous diagonalisation improved by alternating least squares, and tensorly's
    parafac; the better fit is taken.
    """
    size = len(tensor)
    stack = tensor.reshape(size, size, -1).permute(2, 0, 1)
    if reference is not None:
        stack = torch.cat([stack / stack.norm(), reference[None] / reference.norm()])
    ours = least_squares(stack, diagonalise(stack, reference, random), iterations)
    return min((ours, *parafac_columns(tensor, random)), key=lambda columns: misfit(stack, columns))


def diagonalise(stack: Tensor, reference: Tensor | None, random: torch.Generator) -> Tensor:
    """Return common vectors of a stack (K, B, B) by Jennrich's method.

    They are eigenvectors of the quotient of two random contractions, or of one and a reference matrix that is
    better known.
    """
    count, size = stack.shape[:2]
    inverse = None if reference is None else torch.linalg.pinv(reference)
    best, lowest = torch.eye(size, dtype=stack.dtype), float("inf")
    for _ in range(TRIES):
        draw = torch.randn(2, count, generator=random, dtype=stack.dtype)
        left, right = torch.einsum("tk,kij->tij", draw, stack)
        values, vectors = torch.linalg.eig(left @ (torch.linalg.pinv(right) if inverse is None else inverse))
        # A complex pair spans the plane of two vectors that noise has not let apart.
        columns = _unit(torch.where(values.imag < 0, vectors.imag, vectors.real))
        back = torch.linalg.pinv(columns)
        rotated = back @ stack @ back.T
        apart = rotated - torch.diag_embed(rotated.diagonal(dim1=1, dim2=2))
        if (gap := float(apart.norm() / rotated.norm())) < lowest:
            best, lowest = columns, gap
    return best


def least_squares(stack: Tensor, columns: Tensor, iterations: int) -> Tensor:
    """Improve common vectors of a stack by alternating least squares."""
    left = right = columns
    tiny = 1e-12 * torch.eye(columns.shape[1], dtype=stack.dtype)
    for _ in range(iterations):
        gram = (left.T @ left) * (right.T @ right)
        weights = torch.linalg.solve(gram + tiny, torch.einsum("kij,ir,jr->rk", stack, left, right))  # (R, K)

        def improved(other: Tensor, weights: Tensor = weights) -> Tensor:
            product = torch.einsum("kij,jr,rk->ri", stack, other, weights)
            gram = (weights @ weights.T) * (other.T @ other)
            return _unit(torch.linalg.solve(gram + gram.diagonal().mean() * tiny, product).T)

        left = improved(right)
        right = improved(left)
    return _unit(left + right * torch.sign((left * right).sum(0)))


def parafac_columns(tensor: Tensor, random: torch.Generator) -> list[Tensor]:
    """Return the factors that tensorly's parafac finds, or nothing where it gives up."""
    seed = int(torch.randint(2**31, (), generator=random))
    with warnings.catch_warnings(), contextlib.suppress(Exception):  # it is a second opinion
        warnings.simplefilter("ignore")
        rank = len(tensor)
        found = parafac(tensor.numpy(), rank, n_iter_max=200, init="random", random_state=seed, tol=1e-10)
        factors = [torch.from_numpy(tensorly.to_numpy(factor)) for factor in found.factors]
        return [factor / factor.norm(dim=0) for factor in factors if bool(torch.isfinite(factor).all())]
    return []


def misfit(stack: Tensor, columns: Tensor) -> float:
    """Return the relative distance of a stack from the nearest one with these common vectors."""
    gap = stack.flatten(1) - coefficients(stack, columns) @ powers(columns, 2).T
    value = float(gap.norm() / stack.norm())
    return value if value == value else float("inf")


def coefficients(stack: Tensor, columns: Tensor) -> Tensor:
    """Return the weights (K, B) of common vectors in every matrix of a stack."""
    found: Tensor = fit(powers(columns, 2), stack.flatten(1).T)
    return found.T


def _unit(columns: Tensor) -> Tensor:
    unit: Tensor = columns / columns.norm(dim=0).clamp(min=1e-300)
    return unit


def powers(columns: Tensor, order: int) -> Tensor:
    """Return the flattened tensor power of every column: (B^order, R)."""
    result = columns
    for _ in range(order - 1):
        result = (result[:, None] * columns[None]).flatten(0, 1)
    return result
