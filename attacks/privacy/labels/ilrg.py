"""How many examples of each class a batch holds, from the last layer's gradient alone.

What leaks: the count of every class, and class-wise mean embeddings and probabilities.
Paper: Ma et al., Instance-wise Batch Label Restoration via Gradients in Federated Learning (ICLR 2023).
Assumes: softmax cross-entropy, a biased linear last layer, the batch size, gradients averaged over it;
    embeddings of a class lie close together (best on untrained models, whatever the activation).
Fails: gently on trained models and with many examples of each class; badly on sparsified gradients,
    whose quotients are no embeddings. An update of several local steps is read as one gradient.
"""

import math
import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from attacks.privacy.labels.last_layer import LastLayer, last_layer
from fedsim.errors import FedsimError
from fedsim.interfaces import Attack
from fedsim.types import Observation, Reconstruction, Task


class ILRG(Attack):
    """Instance-wise label restoration: counts of every class from one linear system."""

    def __init__(self, *, max_amplification: float = 5.0, rounding: str = "repair") -> None:
        """Set how far a quotient may extrapolate (inf: the paper's way), and how counts become whole.

        rounding: `repair` (whole counts that sum to the batch size) or `nearest` (the paper's).
        """
        if not max_amplification >= 1:
            raise FedsimError(f"attack.max_amplification: expected at least 1, got {max_amplification}")
        if rounding not in ("repair", "nearest"):
            raise FedsimError(f"attack.rounding: expected repair or nearest, got {rounding!r}")
        self.max_amplification = max_amplification
        self.rounding = rounding

    def run(self, model: nn.Module, task: Task, observations: Sequence[Observation]) -> Reconstruction:
        """Restore the class counts of the observed batch (Algorithm 1)."""
        started = time.perf_counter()
        layer = last_layer(model, task, observations[-1])
        embeddings = class_embeddings(layer, self.max_amplification)
        probabilities = torch.softmax(embeddings @ layer.weight.T + layer.bias, dim=1)
        solution, residual = solve_counts(probabilities, layer.bias_gradient, layer.num_examples)
        repair = self.rounding == "repair"
        counts = (
            repair_counts(solution, layer.num_examples) if repair else solution.clamp(min=0).round().long()
        )
        return Reconstruction(
            class_counts=counts,
            class_presence=counts > 0,
            embeddings=embeddings.float(),
            confidence=residual,
            seconds=time.perf_counter() - started,
        )


def class_embeddings(layer: LastLayer, max_amplification: float = math.inf) -> Tensor:
    """Recover the mean embedding of each class, e_i = G_i / g_i (C, m).

    The quotient is a weighted mean of the batch's embeddings. Its weights (p_k[i] - y_k[i]) / (K g_i)
    are negative for the class's own examples and positive for all others, so they nearly cancel when
    g_i is small: the sum of their sizes says by how much the quotient extrapolates. Where that exceeds
    `max_amplification`, the class gets the pooled embedding mu = G^T g / (g^T g) instead, the
    least-squares solution of G = g mu^T.
    """
    gradient, bias_gradient = layer.weight_gradient, layer.bias_gradient
    if not bias_gradient.any():
        raise FedsimError(
            "the last layer's bias gradient is zero everywhere: nothing to divide by. "
            "Remedy: attack a round in which the clients send that gradient."
        )
    pooled = gradient.T @ bias_gradient / bias_gradient.dot(bias_gradient)
    expected = torch.softmax(layer.weight @ pooled + layer.bias, dim=0)
    own = (expected - bias_gradient).clamp(min=0) * (1 - expected)  # size of the negative weights, times g_i
    amplification = (own + (bias_gradient + own).abs()) / bias_gradient.abs()  # inf or nan where g_i = 0
    usable = (amplification <= max_amplification) & (bias_gradient != 0)
    quotients = gradient / torch.where(usable, bias_gradient, 1.0)[:, None]
    return torch.where(usable[:, None], quotients, pooled)


def solve_counts(probabilities: Tensor, bias_gradient: Tensor, num_examples: int) -> tuple[Tensor, float]:
    """Solve equation (7) for the counts k by least squares.

    The C + 1 equations are sum_j k_j = K and, for every class i, sum_j k_j p_j[i] - k_i = K g_i.
    Returns the real-valued counts and the residual, relative to K.
    """
    classes = len(bias_gradient)
    system = torch.cat([torch.ones(1, classes), probabilities.T - torch.eye(classes)]).to(probabilities)
    right = torch.cat([torch.ones(1), bias_gradient]).to(probabilities) * num_examples
    counts = torch.linalg.lstsq(system, right[:, None], driver="gelsd").solution[:, 0]
    return counts, float((system @ counts - right).norm() / num_examples)


def repair_counts(counts: Tensor, total: int) -> Tensor:
    """Return the whole, non-negative counts that sum to `total` and lie nearest to the real ones.

    Nearest in least squares: shift all by one number, cut at zero, so that the sum is right (projection
    on the simplex), then round down and give the remaining units to the largest fractions.
    """
    ordered = counts.sort(descending=True).values
    excess = (ordered.cumsum(0) - total) / torch.arange(1, len(counts) + 1)
    shift = excess[int((ordered > excess).sum()) - 1]
    shifted = (counts - shift).clamp(min=0)
    whole = shifted.floor().long()
    missing = total - int(whole.sum())
    if missing > 0:
        whole[(shifted - whole).topk(missing).indices] += 1
    return whole
