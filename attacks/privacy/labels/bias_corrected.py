"""Class counts by peeling one example's share after another off the bias gradient.

What leaks: the count of every class, roughly, from the bias gradient alone.
Paper: Wainakh et al., User-Level Label Leakage from Gradients in Federated Learning (PoPETs 2022).
Assumes: softmax cross-entropy, a biased last layer, every example pushing its class down by about the same.
Fails: where the model's mean probabilities differ between classes (no correction for them): a cheap rival.
"""

import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from fedsim.attacks.privacy.labels.counts import OPEN, deal
from fedsim.attacks.privacy.labels.last_layer import last_layer
from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Attack
from fedsim.core.types import Observation, Reconstruction, Task
from fedsim.models.last_linear import last_linear_name


class BiasCorrected(Attack):
    """Greedy counts: the class with the smallest bias gradient gets an example, its impact is taken off."""

    def check(self, model: nn.Module, task: Task) -> None:
        """Refuse a model that does not end in a linear layer with a bias."""
        last_linear_name(model, task.input_shape)

    def run(self, model: nn.Module, task: Task, observations: Sequence[Observation]) -> Reconstruction:
        """Restore the class counts of the observed batch."""
        started = time.perf_counter()
        layer = last_layer(model, task, observations[-1])
        if layer.num_examples is None:
            raise FedsimError(
                "bias_corrected needs the number of examples, and the clients do not disclose it. "
                "Remedy: add num_examples to federation.disclose, or attack=ilrg, which estimates it."
            )
        remaining = layer.bias_gradient.clone()
        counts = (remaining < 0).long()  # a negative entry needs at least one example of its class
        impact = remaining.clamp(max=0).sum() / layer.num_examples
        remaining -= impact * counts
        if (left := layer.num_examples - int(counts.sum())) > 0:
            counts += deal_out(remaining, -float(impact), left)
        seconds = time.perf_counter() - started
        return Reconstruction(class_counts=counts, class_presence=counts > 0, seconds=seconds)


def deal_out(entries: Tensor, impact: float, examples: int) -> Tensor:
    """Return how many examples a class gets when each goes to the smallest entry, which grows by impact."""
    if impact == 0:  # the smallest stays the smallest
        return torch.zeros(len(entries), dtype=torch.int64).index_fill_(0, entries.argmin(), examples)

    def following(given: Tensor) -> Tensor:
        """Add one impact after another: a product has other last bits, which decide between equal classes."""
        rows = []
        for entry, number in zip(entries.tolist(), given.tolist(), strict=True):
            sums = np.full(number + OPEN, impact)
            sums[0] = entry
            rows.append(np.add.accumulate(sums)[-OPEN:])
        return torch.from_numpy(np.stack(rows))

    return deal(entries / impact, examples, following)
