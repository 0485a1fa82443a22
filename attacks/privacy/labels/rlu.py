"""Class counts from an update of several local steps, by simulating the last layer's training.

What leaks: the count of every class over all local steps.
Paper: Chen and Vikalo, Recovering Labels from Local Updates in Federated Learning (ICML 2024).
    This follows its outline: moments from auxiliary images, least squares, and Monte Carlo simulation of
    how the wrong confidences change over the local steps, here of the last layer alone.
Assumes: some labelled images of the domain, the learning rate and number of local steps; plain SGD.
Fails: where earlier layers move too, which the simulation does not see.
"""

import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsim.attacks.privacy.labels.counts import repair_counts, whole_counts
from fedsim.attacks.privacy.labels.ilrg import solve_proportions
from fedsim.attacks.privacy.labels.last_layer import LastLayer, class_means, last_layer, public_outputs
from fedsim.core.interfaces import Attack
from fedsim.core.settings import whole
from fedsim.core.types import Observation, PublicImages, Reconstruction, Task
from fedsim.models.last_linear import last_linear_name


class RLU(Attack):
    """Class counts by least squares, with confidences simulated over the local steps."""

    public: PublicImages

    def __init__(
        self, *, public: PublicImages, samples: int = 200, iterations: int = 3, seed: int = 0
    ) -> None:
        """Set the auxiliary images, the simulated examples of each class, and how often to solve anew."""
        self.public = public
        self.samples = whole("attack.samples", samples)
        self.iterations = whole("attack.iterations", iterations)
        self.seed = seed

    def check(self, model: nn.Module, task: Task) -> None:
        """Refuse a model that does not end in a linear layer with a bias."""
        last_linear_name(model, task.input_shape)

    def run(self, model: nn.Module, task: Task, observations: Sequence[Observation]) -> Reconstruction:
        """Restore the class counts of the observed batch or batches."""
        started = time.perf_counter()
        seen = observations[-1]
        layer = last_layer(model, task, seen)
        embeddings, _ = public_outputs(model, task, seen, seen.sent, self.public)
        means = class_means(embeddings, self.public.labels, task.num_classes)
        spreads = class_means(
            (embeddings - means[self.public.labels]).square(), self.public.labels, task.num_classes
        )
        random = torch.Generator().manual_seed(self.seed)
        shape = (task.num_classes, self.samples, embeddings.shape[1])
        drawn = means[:, None] + spreads.sqrt()[:, None] * torch.randn(
            shape, generator=random, dtype=torch.float64
        )
        steps = (seen.local_steps or 1) if seen.kind == "update" else 1
        proportions = torch.full((task.num_classes,), 1 / task.num_classes, dtype=torch.float64)
        for _ in range(self.iterations):
            simulated = simulate_confidences(layer, drawn, proportions, steps, seen.learning_rate or 0.0)
            proportions, residual = solve_proportions(simulated, layer.bias_gradient)
            proportions = repair_counts(proportions, 1000).double() / 1000  # non-negative, summing to one
        counts = whole_counts(proportions, layer.num_examples)
        return Reconstruction(
            class_counts=counts,
            class_presence=counts > 0,
            residual=residual,
            seconds=time.perf_counter() - started,
        )


def simulate_confidences(
    layer: LastLayer, embeddings: Tensor, proportions: Tensor, steps: int, learning_rate: float
) -> Tensor:
    """Train the last layer on embeddings (C, S, m) for some steps; return its mean softmaxes (C, C)."""
    weight, bias = layer.weight.clone(), layer.bias.clone()
    labels = functional.one_hot(torch.arange(len(bias))).to(weight)
    total = torch.zeros_like(labels)
    for _ in range(steps):
        confidences = (embeddings @ weight.T + bias).softmax(dim=2)
        total += confidences.mean(dim=1)
        errors = (confidences - labels[:, None]) * proportions[:, None, None] / embeddings.shape[1]
        weight -= learning_rate * torch.einsum("csi,csm->im", errors, embeddings)
        bias -= learning_rate * errors.sum(dim=(0, 1))
    return total / steps
