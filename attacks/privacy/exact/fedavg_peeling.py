"""Whole local trainings, exactly: peel the first step off an update, replay it, subtract it, go on.

What leaks: every image of every local step to float precision, with its label, where the model is fully
    connected.
Paper: none; Dimitrov et al., Data Leakage in Federated Averaging (TMLR 2022), restore such images
    approximately.
Assumes: plain SGD whose rate, steps and number of examples are disclosed; batches of equal size, new ones,
    one again and again, or several epochs over several; two linear layers in a row, the first of at least
    about 3 units for each image, the second of one for each image of each step.
Fails: with momentum or other optimisers, with steps that the peeling of a gradient would fail on; what was
    found before such a step is returned.

The update is - rate * sum over steps of [G_t | g_t]: its rows span the images of all steps. But only those
of the first step have activations, under the weights sent, in the next layer's row space, which holds the
activations of every step; images of later steps miss it by what the weights have moved since, which is far
more than rounding. So the first step's batch is peeled, the step is replayed with it, the update less that
step is one of fewer steps from known weights. Images that come again are of the first epoch already: one
batch over and over is peeled at once, since its activations of later steps only add to the next layer's rows.
At the end errors follow from the replay, and all images at once from their errors.
"""

import dataclasses
import logging
import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedsim.attacks.privacy import claims
from fedsim.attacks.privacy.exact.local_training import Batch, Training
from fedsim.attacks.privacy.exact.peel import Peel
from fedsim.attacks.privacy.exact.peeling import PATIENCE, Peeling
from fedsim.attacks.privacy.matching.linear_layers import (
    linear_names,
)
from fedsim.core import progress
from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Attack
from fedsim.core.randomness import generator
from fedsim.core.types import Observation, Reconstruction, Task

log = logging.getLogger(__name__)
NARROW = (0.05, 0.3)  # widths of kinks at first: images of later steps must not draw all starts to them
NARROWEST = (0.02, 0.1)  # the same where errors lead as well
LOUDER = (30.0, 3.0)  # noise of what is left against the update's: after a whole step, and one with less


class FedAvgPeeling(Attack):
    """Exact batches of all local steps: peel one step, replay it, subtract it, go on."""

    def __init__(
        self,
        *,
        starts: int = 256,
        steps: int = 20,
        annealing: int = 300,
        seconds: float | None = None,
        seed: int = 0,
    ) -> None:
        """Set the random starts of a round and the steps from each, as those of peeling."""
        self.one = Peeling(starts=starts, steps=steps, annealing=annealing, seconds=seconds, seed=seed)

    def check(self, model: nn.Module, task: Task) -> None:
        """Refuse a model that is not a chain of linear layers from the image to the logits."""
        chain = linear_names(model, task)
        if not (chain.begins_with_image and chain.ends_with_logits and len(chain.names) > 1):
            raise FedsimError(
                "fedavg_peeling replays local steps, which needs a fully connected model of two linear "
                "layers or more. Remedy: attack=ig_fedavg."
            )

    def run(self, model: nn.Module, task: Task, observations: Sequence[Observation]) -> Reconstruction:
        """Recover the batches of all steps, first to last."""
        self.check(model, task)
        started, observation = time.perf_counter(), claims.checked(observations[-1])
        steps, rate = claims.local_training(observation)
        if steps == 1 or rate is None:
            return self.one.run(model, task, observations)
        size = observation.num_examples
        if size is None or size % steps:
            raise FedsimError(
                f"fedavg_peeling needs to know how many examples each of {steps} steps had, got {size} in "
                "all. Remedy: add num_examples to federation.disclose; batches of equal size."
            )
        claims.expect_images(size, task)
        training = Training(model, task, observation, steps=steps, rate=rate, each=size // steps)
        random = generator(self.one.seed, "fedavg_peeling", observation.round, observation.client)
        batches = self._peeled(training, random, started + self.one.seconds)
        if not batches:
            raise FedsimError(
                f"none of the {steps} local steps could be peeled. Remedy: attack=ig_fedavg; peeling needs "
                "exact updates, and three units for each image of all steps."
            )
        guess = training.shown(batches)
        return dataclasses.replace(guess, seconds=time.perf_counter() - started)

    def _peeled(self, training: Training, random: torch.Generator, deadline: float) -> list[Batch]:
        """Peel the steps one after another, until none is left or only images that come again."""
        weights, left, batches = dict(training.sent), dict(training.update), list[Batch]()
        later: Tensor | None = None  # inputs of later steps, about
        noise = 0.0
        with progress.bar("local steps", training.steps) as advance:
            for step in range(training.steps):
                peel = training.peel(weights, left, training.steps - step)
                noise = noise or peel.rows[0].noise
                missed = bool(batches) and len(batches[-1].labels) < training.each
                if peel.rows[0].noise > LOUDER[missed] * noise:  # the step before was not quite that
                    break
                if later is not None and len(later) and peel.size > 1:
                    peel.consider(later @ peel.basis.T)
                self._search(peel, training.each, random, deadline)
                later = None if peel.decoys is None else peel.decoys @ peel.basis
                if not len(peel):
                    break
                batches.append(training.batch(peel, weights))
                advance(step + 1)
                if training.again(len(batches)):
                    break
                slopes = training.slopes(weights, batches[-1])[0]
                for name, slope in slopes.items():
                    weights[name], left[name] = (
                        weights[name] - training.rate * slope,
                        left[name] + training.rate * slope,
                    )
        return training.settled(batches)

    def _search(self, peel: Peel, wanted: int, random: torch.Generator, deadline: float) -> None:
        """Look in three ways in turn: at activations, without what later steps show, and at errors too."""
        idle, rounds = 0, 0
        while len(peel) < min(wanted, peel.size) and idle < PATIENCE and time.perf_counter() < deadline:
            more = 2 ** (idle // 6)  # the longer in vain
            if rounds % 3 == 2 if idle < 3 else idle % 2 == 0:
                fresh = peel.search(
                    2 * self.one.starts * more,
                    None,
                    random,
                    annealing=self.one.annealing // 2,
                    widest=NARROWEST,
                    by_errors=True,
                )
            else:
                fresh = peel.search(
                    self.one.starts * more,
                    None,
                    random,
                    annealing=self.one.annealing * (1 + idle // 3 % 2),
                    widest=NARROW,
                    without_decoys=rounds % 3 == 1,
                )
            idle, rounds = 0 if fresh else idle + 1, rounds + 1
