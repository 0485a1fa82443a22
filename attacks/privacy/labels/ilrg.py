"""How many examples of each class a batch holds, from the last layer's gradient alone.

What leaks: the count of every class, and class-wise mean embeddings and probabilities.
Paper: Ma et al., Instance-wise Batch Label Restoration via Gradients in Federated Learning (ICLR 2023).
Assumes: softmax cross-entropy, a biased linear last layer, gradients averaged over the batch; embeddings
    of a class lie close together (best on untrained models, whatever the activation). An undisclosed
    batch size is estimated where the counts determine it.
Fails: gently on trained models, with many examples of each class and on sparsified gradients. An update of
    several local steps is read as one gradient.
"""

import math
import time
from collections.abc import Sequence

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, lsqr
from torch import Tensor, nn

from fedsim.attacks.privacy.labels.counts import nearest_counts, whole_counts
from fedsim.attacks.privacy.labels.last_layer import LastLayer, last_layer, named_classes
from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Attack
from fedsim.core.settings import number, one_of
from fedsim.core.types import Observation, Reconstruction, Task
from fedsim.models.last_linear import last_linear_name

MANY = 200  # classes


class ILRG(Attack):
    """Instance-wise label restoration: counts of every class from one linear system."""

    def __init__(
        self, *, max_amplification: float = 5.0, rounding: str = "repair", classes: Attack | None = None
    ) -> None:
        """Set how far a quotient may extrapolate (inf: however far), and how counts become whole.

        rounding: `repair` (whole counts that sum to the batch size) or `nearest` (each by itself).
        classes: an attack whose class presence restricts the unknowns, such as GradInversion.
        """
        self.max_amplification = number("attack.max_amplification", max_amplification, least=1, infinite=True)
        self.rounding = one_of("attack.rounding", rounding, ("repair", "nearest"))
        self.classes = classes

    def check(self, model: nn.Module, task: Task) -> None:
        """Refuse a model that does not end in a linear layer with a bias."""
        last_linear_name(model, task.input_shape)

    def run(self, model: nn.Module, task: Task, observations: Sequence[Observation]) -> Reconstruction:
        """Restore the class counts of the observed batch (Algorithm 1)."""
        started = time.perf_counter()
        layer = last_layer(model, task, observations[-1])
        embeddings = class_embeddings(layer, self.max_amplification)
        probabilities = class_probabilities(embeddings, layer)
        present = None
        if self.classes is not None:
            present = named_classes(self.classes, model, task, observations)
        proportions, residual = solve_proportions(probabilities, layer.bias_gradient, present)
        if self.rounding == "nearest" and layer.num_examples is not None:
            counts = nearest_counts(proportions, layer.num_examples)
        else:
            counts = torch.zeros(task.num_classes, dtype=torch.int64)
            unknown = torch.ones(task.num_classes, dtype=torch.bool) if present is None else present
            counts[unknown] = whole_counts(proportions[unknown], layer.num_examples)
        return Reconstruction(
            class_counts=counts,
            class_presence=counts > 0,
            embeddings=embeddings.float(),
            probabilities=probabilities.float() if len(counts) <= MANY else None,  # C^2 numbers
            residual=residual,
            seconds=time.perf_counter() - started,
        )


def pooled_embedding(layer: LastLayer) -> Tensor:
    """Return mu = G^T g / (g^T g), the least-squares solution of G = g mu^T: one embedding for the batch."""
    gradient, bias_gradient = layer.weight_gradient, layer.bias_gradient
    if not bias_gradient.any():
        raise FedsimError(
            "the last layer's bias gradient is zero everywhere: nothing to divide by. "
            "Remedy: attack a round in which the clients send that gradient."
        )
    return gradient.T @ bias_gradient / bias_gradient.dot(bias_gradient)


def class_embeddings(layer: LastLayer, max_amplification: float = math.inf) -> Tensor:
    """Recover the mean embedding of each class, e_i = G_i / g_i (C, m).

    The quotient is a weighted mean of the batch's embeddings. Its weights (p_k[i] - y_k[i]) / (K g_i)
    are negative for the class's own examples and positive for all others, so they nearly cancel when
    g_i is small: the sum of their sizes says by how much the quotient extrapolates. Where that exceeds
    `max_amplification`, the class gets the pooled embedding instead.
    """
    bias_gradient, pooled = layer.bias_gradient, pooled_embedding(layer)
    expected = torch.softmax(layer.weight @ pooled + layer.bias, dim=0)
    own = (expected - bias_gradient).clamp(min=0) * (1 - expected)  # size of the negative weights, times g_i
    amplification = (own + (bias_gradient + own).abs()) / bias_gradient.abs()  # inf or nan where g_i = 0
    usable = (amplification <= max_amplification) & (bias_gradient != 0)
    quotients = layer.weight_gradient / torch.where(usable, bias_gradient, 1.0)[:, None]
    return torch.where(usable[:, None], quotients, pooled)


def solve_proportions(
    probabilities: Tensor, bias_gradient: Tensor, present: Tensor | None = None
) -> tuple[Tensor, float]:
    """Solve equation (7) for the classes' proportions q = k / K by least squares.

    The C + 1 equations are sum_j q_j = 1 and, for every class i, sum_j q_j p_j[i] - q_i = g_i; classes
    that are not `present` have q_j = 0. Returns the proportions and the residual.
    """
    unknown = np.ones(len(bias_gradient), bool) if present is None else present.numpy()

    def forward(given: np.ndarray) -> np.ndarray:
        proportions = np.zeros(len(unknown))
        proportions[unknown] = given
        expected = probabilities.T @ torch.from_numpy(proportions).to(probabilities)  # torch: obeys `threads`
        return np.append(expected.numpy() - proportions, proportions.sum())

    def backward(missed: np.ndarray) -> np.ndarray:
        expected = probabilities @ torch.from_numpy(missed[:-1]).to(probabilities)
        return np.asarray((expected.numpy() - missed[:-1] + missed[-1])[unknown])

    # LSQR needs only products with P: C^2 work a step, few steps because P^T - I is near -I, and the
    # shortest solution where the system leaves a choice. A pseudo-inverse would cost C^3.
    shape = (len(unknown) + 1, int(unknown.sum()))
    system = LinearOperator(shape, matvec=forward, rmatvec=backward, dtype=np.float64)
    wanted = np.append(bias_gradient.numpy(), 1.0)
    exact = 1e-12 if probabilities.dtype == torch.float64 else 1e-7
    found = lsqr(system, wanted, atol=exact, btol=exact, iter_lim=10 * shape[1] + 100)[0]
    proportions = torch.zeros_like(bias_gradient)
    proportions[torch.from_numpy(unknown)] = torch.from_numpy(found)
    return proportions, float(np.linalg.norm(forward(found) - wanted))


def class_probabilities(embeddings: Tensor, layer: LastLayer) -> Tensor:
    """Return the softmax that the last layer gives each class's embedding (C, C), in blocks of rows.

    Float32 with many classes: its rounding is far below one example, and time and memory halve.
    """
    classes = len(layer.bias)
    dtype = torch.float64 if classes <= MANY else torch.float32
    embeddings, weight, bias = (tensor.to(dtype) for tensor in (embeddings, layer.weight, layer.bias))
    probabilities = torch.empty(classes, classes, dtype=dtype)
    for start in range(0, classes, 1000):
        logits = torch.addmm(bias, embeddings[start : start + 1000], weight.T)
        torch.softmax(logits, dim=1, out=probabilities[start : start + 1000])
    return probabilities
