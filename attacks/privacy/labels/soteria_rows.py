"""Class-wise mean embeddings up to their size: the last layer's gradient rows themselves.

What leaks: the direction of the mean embedding of every class in the batch.
Paper: Sun et al., Soteria: Provable Defense against Privacy Leakage in Federated Learning from Representation
    Perspective (CVPR 2021), whose observation it is; the rival of Ma et al. (ICLR 2023), table 4.
Assumes: softmax cross-entropy; row i comes mainly from examples of class i.
Fails: on absent classes, whose rows are of all others, and on sizes: it does not divide by the bias gradient.
"""

import time
from collections.abc import Sequence

from torch import nn

from fedsim.attacks.privacy.labels.last_layer import received_layer
from fedsim.core.interfaces import Attack
from fedsim.core.types import Observation, Reconstruction, Task
from fedsim.models.last_linear import last_linear_name


class SoteriaRows(Attack):
    """Embeddings as gradient rows, with the sign turned: a class's own examples push its row down."""

    def check(self, model: nn.Module, task: Task) -> None:
        """Refuse a model that does not end in a linear layer with a bias."""
        last_linear_name(model, task.input_shape)

    def run(self, model: nn.Module, task: Task, observations: Sequence[Observation]) -> Reconstruction:
        """Restore the directions of the classes' mean embeddings."""
        started = time.perf_counter()
        rows = received_layer(model, task, observations[-1], up_to_scale=True).weight_gradient
        return Reconstruction(embeddings=-rows.float(), seconds=time.perf_counter() - started)
