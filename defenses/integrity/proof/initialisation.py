"""Were these weights drawn by a model's random initialisation, or trained before?

Kolmogorov-Smirnov tests, tensor by tensor, against fresh draws, with Bonferroni's correction. They are weak
on uniform initialisations, so a second test looks for weights that no uniform draw can reach.

Paper: Jia et al., Proof-of-Learning: Definitions and Practice (S&P 2021), section V-D4.
"""

from collections.abc import Callable, Sequence

import torch
from scipy import stats
from torch import Tensor

from fedsim.core.types import Weights

DRAWS = 20  # fresh initialisations to compare with
MOST = 200_000  # entries of them for each tensor


def initial_problem(
    weights: Weights, fresh: Callable[[int], Weights], alpha: float = 0.01, draws: int = DRAWS
) -> str | None:
    """Say which tensor was not drawn as `fresh(0)`, `fresh(1)`, ... are, or None."""
    drawn = [fresh(number) for number in range(draws)]
    for name, tensor in weights.items():
        own = tensor.flatten().double()
        pool = torch.cat([other[name].flatten() for other in drawn])[:MOST].double()
        if bool((pool == pool[0]).all()):
            if bool((own != pool[0]).any()):
                return f"tensor {name!r}: expected {float(pool[0]):g} everywhere"
            continue
        if (reach := uniform_reach(pool)) is not None and float(own.abs().max()) > reach:
            return f"tensor {name!r} reaches {float(own.abs().max()):.6g}, a fresh one at most {reach:.6g}"
        p_value = _p_value(own, pool)
        if p_value < alpha / len(weights):
            return f"tensor {name!r}: a Kolmogorov-Smirnov test finds p = {p_value:.2g}"
    return None


def smallest_p(weights: Weights, drawn: Sequence[Weights]) -> float:
    """Return the smallest p-value of all tensors that are drawn at random: the paper's figure 4."""
    found = list[float]()
    for name, tensor in weights.items():
        pool = torch.cat([other[name].flatten() for other in drawn])[:MOST].double()
        if not bool((pool == pool[0]).all()):
            found.append(_p_value(tensor.flatten().double(), pool))
    return min(found)


def _p_value(own: Tensor, pool: Tensor) -> float:
    return float(stats.ks_2samp(own.numpy(), pool.numpy(), method="asymp").pvalue)


def uniform_reach(pool: Tensor) -> float | None:
    """Return what no draw exceeds if the pool is uniform around zero, otherwise None.

    Of N draws from [-b, b] the largest falls short of b by more than 20 b / N once in e^20 cases.
    """
    largest = float(pool.abs().max())
    uniform = stats.uniform(-largest, 2 * largest).cdf
    if float(stats.kstest(pool.numpy(), uniform).pvalue) < 1e-4:
        return None
    return largest * (1 + 20 / len(pool))
