"""Whole batches, exactly, from the gradients of two successive linear layers of an honest model.

What leaks: every image of the batch to float precision, with its label, where the model is fully connected;
    the features into the first linear layer, example by example, behind convolutions.
Paper: none; beyond Geiping et al. (NeurIPS 2020) and the sparsity argument of SPEAR (Dimitrov et al.,
    2024). One example alone is the classic division of a linear layer's gradients.
Assumes: two linear layers with biases in a row, the first of at least about 2.5 K units, the second of at
    least K; one gradient step. Any activation, trained or not; neither labels nor batch size needed.
Fails: with K near .4 of the width or more, behind strong noise and sparsification; of several local steps,
    see fedavg_peeling.

Let [G1 | g1] = D1^T [X | 1] and [G2 | g2] = D2^T [A | 1] be the gradients of both layers, where A is f(X
W1^T + b1). The rows of [X | 1] span the row space of the first, those of [A | 1] the row space of the
second. So an image of the batch is a point x of the first space (K - 1 unknowns) whose [f(W1 x + b1) | 1]
lies in the second: as many equations as the layer has units, for each image on its own. Damped Gauss-Newton
from random starts finds one image or another, and where there are many, gradient steps in coordinates in
which the layer's outputs are orthonormal, with rounded kinks that become sharp. Each image found is then
peeled off: its rows of D1 and D2 are the one solution of d1 = f'(z) * (W2^T d2) in the two column spaces,
its outer products are subtracted, and the search goes on in a smaller space. An image passes if it leaves
no more of its activations outside the second space than the noise in the singular values explains.
"""

import dataclasses
import logging
import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedsim.attacks.privacy import claims
from fedsim.attacks.privacy.exact.behind import alone, behind, read_labels
from fedsim.attacks.privacy.exact.peel import POLISH, Peel
from fedsim.attacks.privacy.exact.shown import bounds_beside, reconstruction
from fedsim.attacks.privacy.exact.spaces import row_scales
from fedsim.attacks.privacy.interruptible import shown_after
from fedsim.attacks.privacy.matching.linear_layers import Between, LinearLayer, linear_chain, linear_names
from fedsim.core import progress, settings
from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Attack
from fedsim.core.randomness import generator
from fedsim.core.types import Observation, Reconstruction, Task

log = logging.getLogger(__name__)
PATIENCE = 12  # rounds of starts without a new image before the search ends
FEW = 32  # images that Gauss-Newton finds from anywhere


class Peeling(Attack):
    """Exact batches from two linear layers: find an image, subtract it, go on."""

    def __init__(
        self,
        *,
        starts: int = 64,
        steps: int = 20,
        annealing: int = 300,
        tolerance: float | None = None,
        seconds: float | None = None,
        seed: int = 0,
    ) -> None:
        """Set the random starts of a round, and the steps from each.

        annealing: gradient steps from each start, where there are many images.
        tolerance: distance from the second layer's space that passes for an image; None: what noise in
            the gradient explains.
        """
        self.starts = settings.whole("attack.starts", starts)
        self.steps = settings.whole("attack.steps", steps)
        self.annealing = settings.whole("attack.annealing", annealing)
        self.tolerance = (
            None if tolerance is None else settings.number("attack.tolerance", tolerance, above=0)
        )
        self.seconds = settings.seconds("attack.seconds", seconds)
        self.seed = seed

    def check(self, model: nn.Module, task: Task) -> None:
        """Refuse a model without a linear layer."""
        linear_names(model, task)

    def run(self, model: nn.Module, task: Task, observations: Sequence[Observation]) -> Reconstruction:
        """Recover the inputs of the first linear layer, one by one."""
        observation = claims.checked(observations[-1])
        layers, between = linear_chain(model, task, observation)
        first = layers[0]
        size = first.examples(observation)
        if first.task_shape is not None:  # equal images are shown as often as they are there
            claims.expect_images(size, task)
        scales, different = row_scales(first.augmented, size, first.different(size))  # equal images are one
        if different > 1 and len(layers) < 2:
            raise FedsimError(
                "peeling a batch needs two linear layers in a row, and the model has one. Remedy: attack=ig."
            )
        if different > 1:  # an image has K - 1 coordinates and units + 1 - K equations
            first.expect_room(different, each=2)
            layers[1].expect_room(different)
            room = self.starts * different * (len(first.weight) + different)
            claims.expect_room(room, f"{self.starts} starts for {different} examples")
        second, act = (layers[1], between[0]) if different > 1 else (first, Between(modules=()))
        next_scales, _ = row_scales(second.augmented, size, second.different(size))
        peel = Peel.of(first, second, act, different, scales=(scales, next_scales))
        if linear_names(model, task).ends_with_logits and different > 1:
            peel.behind = behind(layers, between), size

        def shown() -> Reconstruction:
            if len(peel) < different:
                log.warning("found %d of %d inputs of layer %r", len(peel), different, first.name)
            certified = peel.sure() & _alone(peel, observation, size)
            labels, bounds = _labels(model, task, observation, layers, between, peel, size, certified)
            guess = reconstruction(
                task, first, peel.inputs, labels=labels, certified=certified, size=size, bounds=bounds
            )
            return dataclasses.replace(guess, residual=peel.residual)

        return shown_after(
            lambda: self._search(peel, observation),
            peel,
            shown,
            nothing=f"none of the {size} inputs of layer {first.name!r} was found. Remedy: attack=ig; "
            "peeling needs exact gradients of one step, and four times as many units as images.",
        )

    def _search(self, peel: Peel, observation: Observation) -> None:
        random, idle = generator(self.seed, "peeling", observation.round, observation.client), 0
        deadline = time.perf_counter() + self.seconds
        with progress.bar("peeling", peel.size) as advance:
            while len(peel) < peel.size and idle < PATIENCE and time.perf_counter() < deadline:
                few = (peel.size - len(peel) <= FEW) == (idle % 2 == 0)  # and in vain: the other way
                steps, annealing = (self.steps, 0) if few else (POLISH, self.annealing)
                fresh = peel.search(
                    self.starts,
                    self.tolerance,
                    random,
                    steps=steps,
                    annealing=annealing,
                    undeflated=peel.scaled and idle % 3 == 1,
                )
                idle = 0 if fresh else idle + 1
                advance(len(peel))
        if self.tolerance is None:
            peel.consider_alone()


def _scale(observation: Observation) -> tuple[bool, float]:
    """Say whether the factor from what was received to a gradient is told, and which it is."""
    told = observation.kind == "gradient" or observation.learning_rate is not None
    return told, 1.0 if observation.kind == "gradient" else -1 / (observation.learning_rate or 1.0)


def _alone(peel: Peel, observation: Observation, size: int) -> Tensor:
    """Say which examples' errors are those of one example, where the network behind is known."""
    told, scale = _scale(observation)
    if peel.behind is None or not told or not len(peel):
        return torch.ones(len(peel), dtype=torch.bool)
    errors = peel.errors * scale / peel.scales[0][:, 0]
    return alone(peel.behind[0], peel.found @ peel.weight.T, errors, size)


def _labels(
    model: nn.Module,
    task: Task,
    observation: Observation,
    layers: Sequence[LinearLayer],
    between: Sequence[Between],
    peel: Peel,
    size: int,
    certified: Tensor,
) -> tuple[tuple[Tensor, Tensor] | None, Tensor | None]:
    """Read labels with copies, and bounds of all counts, where linear layers lead up to the logits.

    With labels, errors that are smooth let inputs settle.
    """
    if not linear_names(model, task).ends_with_logits:
        return None, None
    told, scale = _scale(observation)
    outputs, rest = peel.found @ peel.weight.T, behind(layers, between)
    errors = peel.errors * scale / peel.scales[0][:, 0]
    labels, copies = read_labels(rest, outputs, errors, size)
    if not told:
        return (labels, torch.ones_like(copies)), None
    if not any(act.kinked for act in between):
        peel.settle(rest, labels, copies / (size * scale))
    noise = peel.rows[0].noise
    sure = labels[certified], copies[certified]
    bounds = bounds_beside(layers[-1], scale, rest.logits(outputs)[certified], sure, size, noise)
    return (labels, copies), bounds
