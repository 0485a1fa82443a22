"""A local training as the server knows it: what it peels, replays and settles of the steps of an update."""

import dataclasses
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedsim.attacks.privacy.exact.behind import Behind, behind, read_labels
from fedsim.attacks.privacy.exact.local_steps import LinearNetwork
from fedsim.attacks.privacy.exact.peel import Peel
from fedsim.attacks.privacy.exact.shown import reconstruction
from fedsim.attacks.privacy.least_squares import fit
from fedsim.attacks.privacy.matching.linear_layers import (
    Between,
    LinearLayer,
    clear_rank,
    linear_chain,
    linear_names,
)
from fedsim.core.types import Observation, Reconstruction, Task, Weights

log = logging.getLogger(__name__)
AGAIN = 1.25  # activations for each image from which images come again
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
            peel.decoys, peel.behind = peel.found, (behind(layers, between), self.each)
        return peel

    def behind(self, weights: Weights) -> Behind:
        """Return the network behind the first layer at these weights."""
        return behind(*self.layers(weights, self.update))

    def again(self, steps: int) -> bool:
        """Say whether so many steps had all the images, which come again in the others."""
        fewer = different(self.first, self.each * self.steps) <= self.each * steps
        return fewer and self.steps % steps == 0 and steps < self.steps

    def batch(self, peel: Peel, weights: Weights) -> Batch:
        """Read the labels of the surest examples, as many as a step has."""
        best = torch.tensor(peel.residuals).argsort()[: self.each]
        found = peel.found[best]
        rest = self.behind(weights)
        labels, _ = read_labels(rest, found @ peel.weight.T, peel.errors[best], self.each)
        return Batch(
            inputs=found @ peel.basis,
            labels=labels,
            certified=peel.sure()[best],
            residual=max(peel.residuals[place] for place in best.tolist()),
        )

    def slopes(self, weights: Weights, batch: Batch) -> tuple[Weights, Tensor]:
        """Return a step's gradient, and its errors; examples that were not seen had none."""
        seen = len(batch.labels) / self.each
        slopes, errors = self.network.slopes(weights, batch.inputs, batch.labels)
        return {name: seen * slope for name, slope in slopes.items()}, seen * errors

    def settled(self, batches: list[Batch]) -> list[Batch]:
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

    def _replayed(self, batches: Sequence[Batch]) -> tuple[Tensor, float]:
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

    def shown(self, batches: Sequence[Batch]) -> Reconstruction:
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
    """Return how many of `size` inputs differ: all that are visible, at least up to where values fall."""
    rank = clear_rank(gradient)
    return max(rank if rank is not None and rank <= size else 1, visible(gradient, size))


def visible(gradient: Tensor, size: int) -> int:
    """Return how many of `size` singular values stand out of the noise that later ones show.

    The largest singular value of noise is its deviation times the sum of the sides' roots.
    """
    values = torch.linalg.svdvals(gradient)
    freedom = math.prod(max(1, side - size) for side in gradient.shape)
    noise = math.sqrt(float(values[size:].square().sum()) / freedom)
    edge = noise * sum(math.sqrt(side) for side in gradient.shape)
    return max(1, int((values[:size] > EDGE * edge).sum()))
