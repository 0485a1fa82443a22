"""Class counts with the mean probabilities of public images, also from updates of several local steps.

What leaks: the count of every class, on trained models and in FedAvg too.
Paper: none; equation (7) of Ma et al. (ICLR 2023) with measured probabilities. For an update of several steps
    the probabilities are averaged along the straight line from the weights sent to those that came back:
    the update of all layers tells how they moved.
Assumes: some labelled images of the domain; softmax cross-entropy, a biased linear last layer, whose bias
    gradient the clients may keep back.
Fails: where the clients' images are fitted far better than public ones (overfitted models).
"""

import time
from collections.abc import Sequence

import torch
from torch import nn

from fedsim.attacks.privacy.labels.counts import whole_counts
from fedsim.attacks.privacy.labels.ilrg import solve_proportions
from fedsim.attacks.privacy.labels.last_layer import class_means, last_layer, public_outputs
from fedsim.core.interfaces import Attack
from fedsim.core.settings import switch, whole
from fedsim.core.types import Observation, PublicImages, Reconstruction, Task
from fedsim.models.last_linear import last_linear_name


class ILRGPublic(Attack):
    """Class counts with probabilities measured on public images, along the path of the update."""

    public: PublicImages

    def __init__(self, *, public: PublicImages, labelled: bool = True, points: int = 10) -> None:
        """Set the public images, whether to use their labels, and the points along a path of local steps."""
        self.public = public
        self.labelled = switch("attack.labelled", labelled)
        self.points = whole("attack.points", points)

    def check(self, model: nn.Module, task: Task) -> None:
        """Refuse a model that does not end in a linear layer with a bias."""
        last_linear_name(model, task.input_shape)

    def run(self, model: nn.Module, task: Task, observations: Sequence[Observation]) -> Reconstruction:
        """Restore the class counts of the observed batch or batches."""
        started = time.perf_counter()
        seen = observations[-1]
        layer = last_layer(model, task, seen)
        labels = self.public.labels if self.labelled else torch.zeros(0, dtype=torch.int64)
        # Step s of E starts at s / E of the way; a gradient has only a start.
        steps = (seen.local_steps or 1) if seen.kind == "update" else 1
        shares = [point / min(steps, self.points) for point in range(min(steps, self.points))]
        probabilities = torch.zeros(task.num_classes, task.num_classes, dtype=torch.float64)
        for share in shares:
            weights = {name: sent + share * seen.received[name] for name, sent in seen.sent.items()}
            embeddings, logits = public_outputs(model, task, seen, weights, self.public)
            probabilities += class_means(logits.softmax(dim=1), labels, task.num_classes) / len(shares)
        bias_gradient = layer.bias_gradient
        if not bias_gradient.any():  # kept back: G is nearly g mu^T, and the public images know mu
            mean = embeddings.mean(dim=0)
            bias_gradient = layer.weight_gradient @ mean / mean.dot(mean)
        proportions, residual = solve_proportions(probabilities, bias_gradient)
        counts = whole_counts(proportions, layer.num_examples)
        return Reconstruction(
            class_counts=counts,
            class_presence=counts > 0,
            probabilities=probabilities.float(),
            residual=residual,
            seconds=time.perf_counter() - started,
        )
