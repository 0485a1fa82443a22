"""Which classes a batch holds, by singular value decomposition and one linear program a class.

What leaks: the presence of classes, whatever the activation, while the batch is small.
Paper: Dang et al., Revealing and Protecting Labels in Distributed Training (NeurIPS 2021).
Assumes: softmax cross-entropy; fewer examples than classes and features, so that the rank shows the batch.
Fails: in batches as large as the number of classes, where all of them can be separated.
"""

import time
from collections.abc import Sequence

import numpy as np
import torch
from scipy.optimize import linprog
from torch import nn

from fedsim.attacks.privacy.labels.last_layer import received_layer
from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Attack
from fedsim.core.types import Observation, Reconstruction, Task
from fedsim.models.last_linear import last_linear_name

RANK_TOLERANCE = 1e-6  # of the largest singular value, above float32 noise


class RLG(Attack):
    """Class presence by separation: c is present if some r has r.q_c < 0 and r.q_j > 0 for all other j."""

    def check(self, model: nn.Module, task: Task) -> None:
        """Refuse a model that does not end in a linear layer with a bias."""
        last_linear_name(model, task.input_shape)

    def run(self, model: nn.Module, task: Task, observations: Sequence[Observation]) -> Reconstruction:
        """Restore which classes are in the observed batch."""
        started = time.perf_counter()
        gradient = received_layer(model, task, observations[-1], up_to_scale=True).weight_gradient
        if not bool(gradient.any()):
            raise FedsimError(
                "the last layer's gradient is zero everywhere: it separates nothing. "
                "Remedy: attack a round in which the clients send that gradient."
            )
        _, sizes, right = torch.linalg.svd(gradient.T, full_matrices=False)
        columns = right[sizes > RANK_TOLERANCE * sizes[0]].numpy()  # Q (S, C)
        present = torch.tensor([separable(columns, label) for label in range(task.num_classes)])
        return Reconstruction(class_presence=present, seconds=time.perf_counter() - started)


def separable(columns: np.ndarray, label: int) -> bool:
    """Say whether a hyperplane through the origin separates one column from all others."""
    signs = np.ones(columns.shape[1])
    signs[label] = -1
    # Strict inequalities hold for some r exactly if they hold with margin 1 for a longer r.
    constraints = -(columns * signs).T
    found = linprog(
        np.zeros(len(columns)),
        A_ub=constraints,
        b_ub=-np.ones(len(constraints)),
        bounds=(None, None),
        method="highs",
    )
    return bool(found.status == 0)
