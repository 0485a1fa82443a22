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
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedsim.attacks.privacy import claims
from fedsim.attacks.privacy.exact.behind import behind, read_labels
from fedsim.attacks.privacy.exact.local_steps import LinearNetwork
from fedsim.attacks.privacy.exact.peel import Peel
from fedsim.attacks.privacy.exact.peeling import PATIENCE, Peeling
from fedsim.attacks.privacy.exact.search import WIDEST
from fedsim.attacks.privacy.exact.shown import reconstruction
from fedsim.attacks.privacy.least_squares import fit
from fedsim.attacks.privacy.matching.linear_layers import (
    Between,
    LinearLayer,
    clear_rank,
    linear_chain,
    linear_names,
)
from fedsim.core import progress
from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Attack
from fedsim.core.randomness import generator
from fedsim.core.types import Observation, Reconstruction, Task, Weights

log = logging.getLogger(__name__)
NARROW = (0.05, 0.3)  # widths of kinks at first: images of later steps must not draw all starts to them
AGAIN = 1.25  # activations for each image from which images come again
LOUDER = 3.0  # noise of what is left against that of the update
EDGE = 1.3  # an example's singular value over the largest that noise has
EXPLAINED = 1e-3  # of an image's share in the update: so little may a replay leave for it to be certain
ORDERED = 0.01  # share of the update that a replay leaves where later epochs had batches in another order
SETTLING = 3  # rounds in which inputs follow from errors and errors from inputs


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """The examples of one local step."""

    inputs: Tensor  # (N, in + 1): [x | 1]
    labels: Tensor
    certified: Tensor
    residual: float


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

    def _peeled(self, training: "Training", random: torch.Generator, deadline: float) -> list["Batch"]:
        """Peel the steps one after another, until none is left or only images that come again."""
        weights, left, batches = dict(training.sent), dict(training.update), list[Batch]()
        later: Tensor | None = None  # inputs of later steps, about
        noise = 0.0
        with progress.bar("local steps", training.steps) as advance:
            for step in range(training.steps):
                peel = training.peel(weights, left, training.steps - step)
                noise = noise or peel.rows[0].noise
                if (
                    peel.rows[0].noise > LOUDER * noise
                ):  # an example with a loss was missed in the step before
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
        idle, rounds = 0, 0
        while len(peel) < min(wanted, peel.size) and idle < PATIENCE and time.perf_counter() < deadline:
            fresh = peel.search(
                self.one.starts * 2 ** (idle // 4),  # the longer in vain, the more
                None,
                random,
                annealing=self.one.annealing * (1 + idle % 3),
                widest=WIDEST if idle % 3 == 2 else NARROW,
                without_decoys=rounds % 2 == 1,
            )
            idle, rounds = 0 if fresh else idle + 1, rounds + 1


class Training:
    """A local training that the server knows all of but the examples."""

    def __init__(
        self, model: nn.Module, task: Task, observation: Observation, *, steps: int, rate: float, each: int
    ) -> None:
        """Take what was sent and what came back in float64."""
        self.model, self.task, self.observation = model, task, observation
        self.steps, self.rate, self.each = steps, rate, each
        self.sent = {name: tensor.double() for name, tensor in observation.sent.items()}
        self.update = {name: tensor.double() for name, tensor in observation.received.items()}
        chain = linear_names(model, task)
        self.network = LinearNetwork(names=tuple(chain.names), between=tuple(chain.between))

    def summed(self, weights: Weights, update: Weights) -> Observation:
        """Return an update as the sum of the gradients of its steps."""
        received = {name: -tensor / self.rate for name, tensor in update.items()}
        return dataclasses.replace(self.observation, sent=weights, received=received, kind="gradient")

    @property
    def first(self) -> Tensor:
        """The first layer's part of the sum of gradients, weight and bias side by side."""
        return self.layers(self.sent, self.update)[0][0].augmented

    def layers(self, weights: Weights, update: Weights) -> tuple[list[LinearLayer], list[Between]]:
        """Return the linear layers at these weights, with this update's gradients."""
        return linear_chain(self.model, self.task, self.summed(weights, update))

    def peel(self, weights: Weights, update: Weights, steps: int) -> Peel:
        """Begin to peel an update of so many steps."""
        layers, between = self.layers(weights, update)
        size = different(layers[0].augmented, self.each * steps)
        activations = visible(layers[1].augmented, self.each * steps)
        activations = activations if activations > AGAIN * size else size
        layers[0].expect_room(size, each=2)
        layers[1].expect_room(activations)
        peel = Peel.of(layers[0], layers[1], between[0], size, activations)
        if activations == size:  # the images of later steps are nearly members
            peel.decoys = peel.found
        return peel

    def again(self, steps: int) -> bool:
        """Say whether so many steps had all the images, which come again in the others."""
        fewer = different(self.first, self.each * self.steps) <= self.each * steps
        return fewer and self.steps % steps == 0 and steps < self.steps

    def batch(self, peel: Peel, weights: Weights) -> "Batch":
        """Read the labels of the surest examples, as many as a step has."""
        best = torch.tensor(peel.residuals).argsort()[: self.each]
        found = peel.found[best]
        rest = behind(*self.layers(weights, self.update))
        labels, _ = read_labels(rest, found @ peel.weight.T, peel.errors[best], self.each)
        return Batch(
            inputs=found @ peel.basis,
            labels=labels,
            certified=torch.tensor(peel.certified)[best],
            residual=max(peel.residuals[place] for place in best.tolist()),
        )

    def slopes(self, weights: Weights, batch: "Batch") -> tuple[Weights, Tensor]:
        """Return a step's gradient, and its errors; examples that were not seen had none."""
        seen = len(batch.labels) / self.each
        slopes, errors = self.network.slopes(weights, batch.inputs, batch.labels)
        return {name: seen * slope for name, slope in slopes.items()}, seen * errors

    def settled(self, batches: list["Batch"]) -> list["Batch"]:
        """Let all inputs follow from their errors in a replay of all steps, while more is explained."""
        whole = bool(batches) and (len(batches) == self.steps or self.again(len(batches)))
        if not whole or sum(len(batch.labels) for batch in batches) < self.each * len(batches):
            return batches
        best, target, moved = math.inf, self.first, batches
        for _ in range(SETTLING):
            errors, unexplained = self._replayed(moved)
            if unexplained >= min(best, ORDERED):
                break
            best = unexplained
            shares = errors.norm(dim=1) * torch.cat([b.inputs for b in moved]).norm(dim=1) / target.norm()
            explained = (unexplained < EXPLAINED * shares).view(-1, self.each)
            batches = [
                dataclasses.replace(batch, certified=batch.certified | sure, residual=unexplained)
                for batch, sure in zip(moved, explained, strict=True)
            ]
            inputs = fit(errors.T, target)
            parts = (inputs / inputs[:, -1:]).view(len(batches), self.each, -1)
            moved = [dataclasses.replace(b, inputs=part) for b, part in zip(batches, parts, strict=True)]
        return batches

    def _replayed(self, batches: Sequence["Batch"]) -> tuple[Tensor, float]:
        """Take all steps; return each image's errors, summed, and the share of the update left over."""
        weights, errors = dict(self.sent), torch.zeros(len(batches), self.each, len(self.first))
        for step in range(self.steps):
            place = step % len(batches)
            slopes, own = self.slopes(weights, batches[place])
            errors = errors.to(own)
            errors[place] += own
            weights = {name: tensor - self.rate * slopes[name] for name, tensor in weights.items()}
        over = sum(
            (weights[name] - self.sent[name] - told).square().sum() for name, told in self.update.items()
        )
        whole = sum(told.square().sum() for told in self.update.values())
        return errors.flatten(0, 1), float(over / whole) ** 0.5

    def shown(self, batches: Sequence["Batch"]) -> Reconstruction:
        """Say what was found of all steps."""
        inputs, labels, certified = (
            torch.cat([getattr(batch, name) for batch in batches])
            for name in ("inputs", "labels", "certified")
        )
        size = self.each * self.steps
        times = self.steps // len(batches) if self.again(len(batches)) else 1
        if times * len(inputs) < size:
            log.warning("found %d of %d images, in %d steps", times * len(inputs), size, len(batches))
        first = linear_chain(self.model, self.task, self.observation)[0][0]
        copies = torch.full_like(labels, times)
        guess = reconstruction(
            self.task, first, inputs, labels=(labels, copies), certified=certified, size=size
        )
        return dataclasses.replace(guess, residual=max(batch.residual for batch in batches))


def different(gradient: Tensor, size: int) -> int:
    """Return how many of `size` inputs differ: up to where singular values fall, or all that are visible."""
    rank = clear_rank(gradient)
    return rank if rank is not None and rank <= size else visible(gradient, size)


def visible(gradient: Tensor, size: int) -> int:
    """Return how many of `size` singular values stand out of the noise that later ones show.

    The largest singular value of noise is its deviation times the sum of the sides' roots.
    """
    values = torch.linalg.svdvals(gradient)
    freedom = math.prod(max(1, side - size) for side in gradient.shape)
    noise = math.sqrt(float(values[size:].square().sum()) / freedom)
    edge = noise * sum(math.sqrt(side) for side in gradient.shape)
    return max(1, int((values[:size] > EDGE * edge).sum()))
