"""A hostile trace: after a step on another batch, weights lean back to the real ones, a little at every step.

No interval is further off than a verifier allows, and the last weights are those of the model in question.
What stops it is the sum of the errors (defenses/integrity/proof/leaning.py).
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from fedsim.core.training import Batch, Trace, load_weights, sgd_step, weights_of
from fedsim.defenses.integrity.proof.distances import distance
from fedsim.integrity.training import CentralTraining, batch_at, train_centrally


def leaned_back(training: CentralTraining, forged: Mapping[int, Batch], most: float) -> tuple[Trace, float]:
    """Return a trace with other batches at some steps, each done as claimed, and what is left at the end.

    most: by how much every step leans towards the weights that were really there.
    """
    real = train_centrally(training, 1)
    model, weights = training.fresh(0), [real.checkpoints[0]]
    gap = 0.0
    for step, indices in enumerate(real.indices):
        load_weights(model, weights[-1])
        sgd_step(model, forged.get(step) or batch_at(training, torch.tensor(indices)), training.learning_rate)
        end, wanted = weights_of(model), real.checkpoints[step + 1]
        gap = distance("l2", end, wanted)
        share = min(1.0, most / gap) if gap else 0.0
        leaned: dict[str, Tensor] = {n: end[n] + share * (wanted[n] - end[n]) for n in end}
        weights.append(wanted if share == 1 else leaned)
    return replace(real, checkpoints=tuple(weights)), max(0.0, gap - most)
