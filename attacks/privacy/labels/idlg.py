"""Which classes a batch holds, from the signs of the last layer's gradient rows.

What leaks: the presence of classes; exact for one example with non-negative embeddings.
Paper: Zhao et al., iDLG: Improved Deep Leakage from Gradients (2020); for batches as in Ma et al. (2023).
Assumes: softmax cross-entropy, non-negative embeddings (ReLU, sigmoid).
Fails: on repeated and neighbouring classes, whose rows mix signs, and with negative activations.
"""

import time
from collections.abc import Sequence

from torch import nn

from fedsim.attacks.privacy.labels.last_layer import received_layer
from fedsim.core.interfaces import Attack
from fedsim.core.types import Observation, Reconstruction, Task
from fedsim.models.last_linear import last_linear_name


class IDLG(Attack):
    """Class presence by sign: every class whose gradient row sums to less than zero."""

    def check(self, model: nn.Module, task: Task) -> None:
        """Refuse a model that does not end in a linear layer with a bias."""
        last_linear_name(model, task.input_shape)

    def run(self, model: nn.Module, task: Task, observations: Sequence[Observation]) -> Reconstruction:
        """Restore which classes are in the observed batch."""
        started = time.perf_counter()
        row_sums = received_layer(model, task, observations[-1], up_to_scale=True).weight_gradient.sum(dim=1)
        return Reconstruction(class_presence=row_sums < 0, seconds=time.perf_counter() - started)
