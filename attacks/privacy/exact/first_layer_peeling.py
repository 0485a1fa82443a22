"""Whole batches, exactly, from the gradient of a model's first linear layer and the network behind it.

What leaks: every image of the batch to float precision, with its label, where the model is fully connected,
    also with two layers and ten outputs; the features into the first linear layer behind convolutions.
Paper: none; beyond SPEAR (Dimitrov et al., NeurIPS 2024), SPEAR++ (2025), and Shariati and Meybodi (2026),
    whose peeling begins with units that fire for one image alone; this one needs no such unit.
Assumes: a linear layer with a bias and about 3 K units or more, linear layers and activations behind it up
    to the logits; one gradient step. Trained or not; neither labels nor batch size needed.
Fails: with fewer units, behind strong noise and sparsification; with ReLUs and two classes; on examples
    without loss, which leave nothing.

[G | g] = D^T [X | 1]: an example is a point x of the row space (K - 1 unknowns) whose error, the slope of
its loss by the layer's outputs, lies in the column space (units - K equations). Gradient steps find such
points from random starts, in coordinates in which the layer's outputs are orthonormal, and with rounded
kinks that become sharp. ReLUs: from a point nearby, the side of its kink that each unit is on follows from
the projection of the error, so the error is exact although the point is not. Found errors are projected out
of G from the left: the rows of what is left span the images that are left. With all errors known, X = D^+
G.
"""

import dataclasses
import logging
import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedsim.attacks.privacy import claims
from fedsim.attacks.privacy.exact.behind import behind, read_labels
from fedsim.attacks.privacy.exact.certificates import CLEAR, apart, judge
from fedsim.attacks.privacy.exact.error_peel import ErrorPeel
from fedsim.attacks.privacy.exact.shown import reconstruction
from fedsim.attacks.privacy.interruptible import shown_after
from fedsim.attacks.privacy.matching.linear_layers import LinearLayer, linear_chain, linear_names
from fedsim.core import progress, settings
from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Attack
from fedsim.core.randomness import generator
from fedsim.core.types import Observation, Reconstruction, Task

log = logging.getLogger(__name__)
PATIENCE = 5  # rounds of starts without a new example before the search ends


class FirstLayerPeeling(Attack):
    """Exact batches from one linear layer: a point of its rows whose error is in its columns."""

    def __init__(
        self, *, starts: int = 128, steps: int = 300, seconds: float | None = None, seed: int = 0
    ) -> None:
        """Set the random starts of a round, and the gradient steps from each."""
        self.starts = settings.whole("attack.starts", starts)
        self.steps = settings.whole("attack.steps", steps)
        self.seconds = settings.seconds("attack.seconds", seconds)
        self.seed = seed

    def check(self, model: nn.Module, task: Task) -> None:
        """Refuse a model without a linear layer, or with more behind it than such and activations."""
        if not linear_names(model, task).ends_with_logits:
            raise FedsimError(
                "first_layer_peeling needs linear layers up to the logits, and something follows the last. "
                "Remedy: attack=peeling."
            )

    def run(self, model: nn.Module, task: Task, observations: Sequence[Observation]) -> Reconstruction:
        """Recover the inputs of the first linear layer, one by one."""
        self.check(model, task)
        observation = claims.checked(observations[-1])
        layers, between = linear_chain(model, task, observation)
        first = layers[0]
        size = first.examples(observation)
        if first.task_shape is not None:
            claims.expect_images(size, task)
        different = first.different(size)
        first.expect_room(different, each=2)
        if not bool(first.augmented.any()):
            raise FedsimError(
                f"the gradient of layer {first.name!r} is zero: no example leaves anything in it. "
                "Remedy: distrust this client; a model whose units are not dead."
            )
        claims.expect_room(self.starts * (len(first.weight) + different), f"{self.starts} starts")
        peel = ErrorPeel.of(first, behind(layers, between), different, task.num_classes)
        if peel.kinked and task.num_classes < 3:
            raise FedsimError(
                f"first_layer_peeling: expected three classes or more behind ReLUs, got {task.num_classes}: "
                "errors of two classes all point one way, so none stands out. Remedy: attack=peeling."
            )
        return shown_after(
            lambda: self._search(peel, observation),
            peel,
            lambda: _shown(task, observation, first, peel, size),
            nothing=f"none of the {size} inputs of layer {first.name!r} was found. Remedy: attack=ig; "
            "peeling needs exact gradients of one step, and three times as many units as examples.",
        )

    def _search(self, peel: ErrorPeel, observation: Observation) -> None:
        random, idle = generator(self.seed, "first_layer", observation.round, observation.client), 0
        deadline = time.perf_counter() + self.seconds
        with progress.bar("peeling", peel.size) as advance:
            while len(peel) < peel.size and idle < PATIENCE and time.perf_counter() < deadline:
                longer = 2 if peel.size > len(peel.weight) // 5 else 1  # little room: sharpen kinks slowly
                fresh = peel.search(self.starts, self.steps * longer * min(2, 1 + idle), random)
                idle = 0 if fresh else idle + 1
                advance(len(peel))


def _shown(
    task: Task, observation: Observation, first: LinearLayer, peel: ErrorPeel, size: int
) -> Reconstruction:
    """Return the examples with labels, certified by the errors that their inputs have."""
    if len(peel) < size:
        log.warning("found %d of %d inputs of layer %r", len(peel), size, first.name)
    inputs, lengths = peel.inputs()
    outputs = inputs @ peel.weight.T
    errors = peel.behind.errors(outputs, peel.labels).detach()
    outside = errors - (errors @ peel.columns.basis) @ peel.columns.basis.T
    residuals = outside.norm(dim=1) / errors.norm(dim=1).clamp(min=1e-300)
    expected = peel.columns.expected_residuals(errors)
    judged = judge(residuals, expected, errors.shape[1], 2 * peel.size - 1, peel.tries)
    scale = 1.0 if observation.kind == "gradient" else -1 / (observation.learning_rate or 1.0)
    labels, copies = read_labels(peel.behind, outputs, peel.errors * lengths[:, None] * scale, size)
    told = observation.kind == "gradient" or observation.learning_rate is not None
    unexplained = _unexplained(peel.gradient, errors, inputs)
    guess = reconstruction(
        task,
        first,
        inputs @ peel.basis,
        labels=(labels, copies if told else torch.ones_like(copies)),
        # With some missing, an input is open in their span, and kinked errors do not tell.
        certified=judged.certified & _clear(peel, inputs, lengths) & apart(inputs) & (len(peel) == peel.size),
        size=size,
    )
    return dataclasses.replace(guess, residual=max(unexplained, float(residuals.max())))


def _clear(peel: ErrorPeel, inputs: Tensor, lengths: Tensor) -> Tensor:
    """Say which inputs noise has not moved, as it does where the errors of two examples are nearly alike.

    X = D^+ G: a row of it has the noise of G times that of (D D^T)^-1/2.
    """
    errors = peel.errors * lengths[:, None]
    variances = torch.linalg.pinv(errors @ errors.T, rtol=1e-14, hermitian=True).diagonal().clamp(min=0)
    deviations = peel.columns.noise * (variances * peel.basis.shape[1]).sqrt()
    clear: Tensor = deviations < CLEAR * inputs.norm(dim=1)
    return clear


def _unexplained(gradient: Tensor, errors: Tensor, inputs: Tensor) -> float:
    """Return the share of the gradient that no sum of these examples' outer products explains."""
    left, right = torch.linalg.qr(errors.T)[0], torch.linalg.qr(inputs.T)[0]
    explained = left @ (left.T @ gradient @ right) @ right.T
    return float((gradient - explained).norm() / gradient.norm())
