"""Class counts with one pooled embedding in place of one for every class.

What leaks: the count of every class; steadier than class-wise quotients in large or sparsified batches.
Paper: none; follows from Ma et al. (ICLR 2023), whose class-wise embeddings all coincide when untrained.
Assumes: softmax cross-entropy, a biased linear last layer; embeddings of the whole batch lie close together.
Fails: on trained models, whose classes differ in their embeddings.
"""

import time
from collections.abc import Sequence

import torch
from torch import nn

from fedsim.attacks.privacy.labels.counts import whole_counts
from fedsim.attacks.privacy.labels.ilrg import pooled_embedding
from fedsim.attacks.privacy.labels.last_layer import last_layer
from fedsim.core.interfaces import Attack
from fedsim.core.types import Observation, Reconstruction, Task
from fedsim.models.last_linear import last_linear_name


class ILRGPooled(Attack):
    """Class counts from the batch's pooled embedding mu: q = softmax(W mu + b) - g."""

    def check(self, model: nn.Module, task: Task) -> None:
        """Refuse a model that does not end in a linear layer with a bias."""
        last_linear_name(model, task.input_shape)

    def run(self, model: nn.Module, task: Task, observations: Sequence[Observation]) -> Reconstruction:
        """Restore the class counts of the observed batch."""
        started = time.perf_counter()
        layer = last_layer(model, task, observations[-1])
        pooled = pooled_embedding(layer)
        expected = torch.softmax(layer.weight @ pooled + layer.bias, dim=0)
        counts = whole_counts(expected - layer.bias_gradient, layer.num_examples)
        return Reconstruction(
            class_counts=counts,
            class_presence=counts > 0,
            embeddings=pooled.expand(task.num_classes, -1).float(),
            probabilities=expected.expand(task.num_classes, -1).float(),
            seconds=time.perf_counter() - started,
        )
