"""Which classes a batch holds, from the smallest entry of each gradient row of the last layer.

What leaks: the presence of classes; exact in batches when embeddings are non-negative.
Paper: Yin et al., See through Gradients: Image Batch Recovery via GradInversion (CVPR 2021).
Assumes: softmax cross-entropy, non-negative embeddings (ReLU, sigmoid).
Fails: with negative activations, whose absent classes have negative entries too.
"""

import time
from collections.abc import Sequence

from torch import nn

from fedsim.attacks.privacy.labels.last_layer import received_layer
from fedsim.core.interfaces import Attack
from fedsim.core.types import Observation, Reconstruction, Task
from fedsim.models.last_linear import last_linear_name


class GradInversion(Attack):
    """Class presence by minima: every class whose gradient row has an entry below zero."""

    def check(self, model: nn.Module, task: Task) -> None:
        """Refuse a model that does not end in a linear layer with a bias."""
        last_linear_name(model, task.input_shape)

    def run(self, model: nn.Module, task: Task, observations: Sequence[Observation]) -> Reconstruction:
        """Restore which classes are in the observed batch."""
        started = time.perf_counter()
        minima = received_layer(model, task, observations[-1], up_to_scale=True).weight_gradient.amin(dim=1)
        return Reconstruction(class_presence=minima < 0, seconds=time.perf_counter() - started)
