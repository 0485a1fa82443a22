"""Moment tensors of a wide layer, one chunk of units at a time: no tensor over all inputs is ever formed.

T_p = mean_j g_j He_p(w_j) for units w_j ~ N(0, I) with gradients g_j = sum_i l_i act(w_j.x_i + b); by Stein's
lemma it tends to sum_i l_i k_p x_i^(tensor p). He_2 = w w^T - I, He_3 = w w w - 3 sym(w I), and so on.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

Units = Callable[[], Iterator[tuple[Tensor, Tensor]]]  # chunks of (w (c, d), g (c,)), the same at every call
OVERSAMPLED = 8  # more vectors in a subspace iteration than are wanted


def first_moment(units: Units) -> Tensor:
    """Return T_1 (d,)."""
    total, count = torch.zeros((), dtype=torch.float64), 0
    for weights, gradients in units():
        total = total + (gradients.to(weights) @ weights).double()
        count += len(weights)
    return total / count


def moment_noise(units: Units) -> float:
    """Return the variance of an entry of a moment, over p!: what a finite number of units leaves open."""
    total, count = 0.0, 0
    for weights, gradients in units():
        total += float(gradients.double().square().sum())
        count += len(weights)
    return total / count**2


def second_times(units: Units, block: Tensor) -> Tensor:
    """Return T_2 times a block of vectors (d, k)."""
    total, level, count = torch.zeros_like(block), 0.0, 0
    for weights, gradients in units():
        inner = weights @ block.to(weights)
        total += (weights.T @ (inner * gradients.to(weights)[:, None])).double()
        level += float(gradients.sum())
        count += len(weights)
    return (total - level * block) / count


def third_times(units: Units, block: Tensor, along: Tensor) -> Tensor:
    """Return T_3 contracted with one vector (d,), times a block of vectors (d, k)."""
    total, count = torch.zeros_like(block), 0
    for weights, gradients in units():
        along_units = weights @ along.to(weights)
        inner = weights @ block.to(weights)
        level = gradients.to(weights)
        total += (weights.T @ (inner * (level * along_units)[:, None])).double()
        total -= float((level * along_units).sum()) * block
        total -= torch.outer((level @ weights).double(), along @ block)
        total -= torch.outer(along, (level @ inner).double())
        count += len(weights)
    return total / count


def third_unfolded(units: Units, basis: Tensor) -> Tensor:
    """Return T_3 contracted with a basis (d, B) in two places, flattened: (d, B^2)."""
    size, count = basis.shape[1], 0
    total = torch.zeros(len(basis), size * size, dtype=torch.float64)
    first, inner_first = torch.zeros(len(basis), dtype=torch.float64), torch.zeros(size, dtype=torch.float64)
    for weights, gradients in units():
        inner, level = weights @ basis.to(weights), gradients.to(weights)
        pairs = (inner[:, :, None] * inner[:, None]).flatten(1)
        total += (weights.T @ (pairs * level[:, None])).double()
        first += (level @ weights).double()
        inner_first += (level @ inner).double()
        count += len(weights)
    eye = torch.eye(size, dtype=torch.float64)
    mixed = basis[:, :, None] * inner_first
    lower = first[:, None, None] * eye + mixed + mixed.mT
    return (total - lower.flatten(1)) / count


def leading_subspace(
    times: Callable[[Tensor], Tensor], inputs: int, rank: int, passes: int, random: torch.Generator
) -> Tensor:
    """Return the eigenvectors (d, rank) of largest absolute eigenvalue of a symmetric matrix, by products."""
    width = min(inputs, rank + OVERSAMPLED)
    block = torch.linalg.qr(torch.randn(inputs, width, generator=random, dtype=torch.float64))[0]
    for _ in range(passes):
        before, image = block, times(block)
        block = torch.linalg.qr(image)[0]
    small = before.T @ image
    values, vectors = torch.linalg.eigh((small + small.T) / 2)
    leading = vectors[:, values.abs().argsort(descending=True)[:rank]]
    found: Tensor = torch.linalg.qr(image @ leading)[0]
    return found


def projected(units: Units, basis: Tensor, highest: int) -> list[Tensor]:
    """Return T_1 to T_highest (at most 4) contracted with an orthonormal basis (d, B) in every place."""
    size, count = basis.shape[1], 0
    sums = [torch.zeros(size**order, dtype=torch.float64) for order in range(highest + 1)]
    for weights, gradients in units():
        inner = (weights @ basis.to(weights)).double()
        level = gradients.double()
        pairs = (inner[:, :, None] * inner[:, None]).flatten(1)
        scaled = inner * level[:, None]
        sums[0] += level.sum()
        sums[1] += scaled.sum(0)
        sums[2] += (scaled.T @ inner).flatten()
        if highest >= 3:
            sums[3] += (scaled.T @ pairs).flatten()
        if highest >= 4:
            sums[4] += (pairs.T @ (pairs * level[:, None])).flatten()
        count += len(weights)
    zero, one, two, *rest = ((total / count).view([size] * order) for order, total in enumerate(sums))
    eye = torch.eye(size, dtype=torch.float64)
    found = [one, two - zero * eye]
    if highest >= 3:
        flat = torch.einsum("i,jk->ijk", one, eye)
        found.append(rest[0] - flat - flat.permute(1, 0, 2) - flat.permute(1, 2, 0))
    if highest >= 4:
        four, mixed = rest[1], torch.einsum("ij,kl->ijkl", two, eye)
        even = torch.einsum("ij,kl->ijkl", eye, eye)
        places = ((0, 1, 2, 3), (0, 2, 1, 3), (0, 2, 3, 1), (2, 0, 1, 3), (2, 0, 3, 1), (2, 3, 0, 1))
        for order in places:
            four = four - mixed.permute(order)
        for order in ((0, 1, 2, 3), (0, 2, 1, 3), (0, 2, 3, 1)):
            four = four + zero * even.permute(order)
        found.append(four)
    return found
