"""Whole local trainings, exactly: peel the first step off an update, replay it, subtract it, go on.

What leaks: every image of every local step to float precision, with its label, where the model is fully
    connected.
Paper: none; Dimitrov et al., Data Leakage in Federated Averaging (TMLR 2022), restore such images
    approximately.
Assumes: plain SGD whose rate, steps and number of examples are disclosed; different batches of equal size,
    or one batch again and again; two linear layers in a row, the first of at least about 3 units for each
    image of all steps.
Fails: with momentum or other optimisers, with steps that the peeling of a gradient would fail on; what was
    found before such a step is returned. Several epochs over several batches.

The update is - rate * sum over steps of [G_t | g_t]: its rows span the images of all steps. But only those
of the first step have activations, under the weights sent, in the next layer's row space; images of later
steps miss it by what the weights have moved since, which is far more than rounding. So the first step's
batch is peeled, the step is replayed with it, the update less that step is one of fewer steps from known
weights. One batch over and over: peeled as if it were one gradient at the weights in the middle of the way,
then moved within its span until all steps replayed give the update.
"""

import dataclasses
import logging
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
from fedsim.attacks.privacy.exact.shown import reconstruction
from fedsim.attacks.privacy.matching.linear_layers import linear_chain, linear_names
from fedsim.core import progress
from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Attack
from fedsim.core.randomness import generator
from fedsim.core.types import Observation, Reconstruction, Task, Weights

log = logging.getLogger(__name__)
DRIFT = 0.1  # residual that passes for an image whose errors have moved over the steps of one batch
REPLAYS = 200  # steps of the search, each with all local steps replayed
BLURRED = 0.05  # of the typical length: images of one batch nearer than this, with drift in them, are one
EXPLAINED = 1e-5  # share of the update that a replay may leave unexplained and yet be certain


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
        deadline = started + self.one.seconds
        rank = linear_chain(model, task, training.summed(training.sent, training.update))[0][0].rank
        repeated = rank is not None and rank <= training.each
        batches = (self._one_batch if repeated else self._different)(training, random, deadline)
        if not batches:
            raise FedsimError(
                f"none of the {steps} local steps could be peeled. Remedy: attack=ig_fedavg; peeling needs "
                "exact updates, and three units for each image of all steps."
            )
        guess = training.shown(batches * (steps if repeated else 1))
        return dataclasses.replace(guess, seconds=time.perf_counter() - started)

    def _different(self, training: "Training", random: torch.Generator, deadline: float) -> list["Batch"]:
        """Peel the steps one after another; each had a batch of its own."""
        weights, left, batches = dict(training.sent), dict(training.update), list[Batch]()
        with progress.bar("local steps", training.steps) as advance:
            for step in range(training.steps):
                peel = training.peel(weights, left, training.each * (training.steps - step))
                self._search(peel, training.each, random, deadline)
                if len(peel) < training.each:
                    break
                batches.append(training.batch(peel, weights))
                slopes, _ = training.network.slopes(weights, batches[-1].inputs, batches[-1].labels)
                for name, slope in slopes.items():
                    weights[name], left[name] = (
                        weights[name] - training.rate * slope,
                        left[name] + training.rate * slope,
                    )
                advance(step + 1)
        return batches

    def _one_batch(self, training: "Training", random: torch.Generator, deadline: float) -> list["Batch"]:
        """Peel a batch that was used in every step, as if the update were one gradient; then replay."""
        mean = {name: tensor / training.steps for name, tensor in training.update.items()}
        # On average over the steps the weights were on their way by so much, and drifts cancel there.
        share = (training.steps - 1) / (2 * training.steps)
        middle = {name: sent + share * training.update[name] for name, sent in training.sent.items()}
        peel = training.peel(middle, mean, training.each)
        peel.same = BLURRED
        self._search(peel, training.each, random, deadline, tolerance=DRIFT)
        if len(peel) < training.each:
            return []
        batch, unexplained = training.refined(training.batch(peel, middle), peel)
        sure = unexplained < EXPLAINED
        certified = torch.full((len(batch.labels),), sure)
        return [dataclasses.replace(batch, certified=certified, residual=unexplained)]

    def _search(
        self,
        peel: Peel,
        wanted: int,
        random: torch.Generator,
        deadline: float,
        tolerance: float | None = None,
    ) -> None:
        idle = 0
        while len(peel) < wanted and idle < PATIENCE and time.perf_counter() < deadline:
            annealing = self.one.annealing * (1 + idle % 3)
            fresh = peel.search(self.one.starts, tolerance, random, annealing=annealing)
            idle = 0 if fresh else idle + 1


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

    def first_of(self, update: Weights) -> Tensor:
        """Return the first layer's part of an update, weight and bias side by side."""
        name = self.network.names[0]
        return torch.cat([update[f"{name}.weight"], update[f"{name}.bias"][:, None]], dim=1)

    def peel(self, weights: Weights, update: Weights, size: int) -> Peel:
        """Begin to peel an update of so many examples in all."""
        layers, between = linear_chain(self.model, self.task, self.summed(weights, update))
        layers[0].expect_room(size, each=2)
        layers[1].expect_room(size)
        return Peel.of(layers[0], layers[1], between[0], size)

    def batch(self, peel: Peel, weights: Weights) -> "Batch":
        """Read the labels of the surest examples, as many as a step has."""
        layers, between = linear_chain(self.model, self.task, self.summed(weights, self.update))
        best = torch.tensor(peel.residuals).argsort()[: self.each]
        found = peel.found[best]
        labels, _ = read_labels(behind(layers, between), found @ peel.weight.T, peel.errors[best], self.each)
        return Batch(
            inputs=found @ peel.basis,
            labels=labels,
            certified=torch.tensor(peel.certified)[best],
            residual=max(peel.residuals[place] for place in best.tolist()),
        )

    def refined(self, batch: "Batch", peel: Peel) -> tuple["Batch", float]:
        """Move the images of one batch, within their span, until all steps replayed give the update."""
        place = (batch.inputs @ peel.basis.T).requires_grad_()
        search = torch.optim.LBFGS(
            [place],
            max_iter=REPLAYS,
            history_size=REPLAYS,
            tolerance_grad=0,
            tolerance_change=0,
            line_search_fn="strong_wolfe",
        )

        def inputs() -> Tensor:
            found = place @ peel.basis
            return found / found[:, -1:]

        def loss() -> float:
            with torch.enable_grad():
                over = self.unexplained(self.replay(inputs(), batch.labels)).square()
                place.grad = torch.autograd.grad(over, place)[0]
            return float(over.detach())

        search.step(loss)  # type: ignore[no-untyped-call]
        found = inputs().detach()
        left = self.unexplained(self.replay(found, batch.labels)).detach()
        return dataclasses.replace(batch, inputs=found), float(left)

    def replay(self, inputs: Tensor, labels: Tensor) -> Weights:
        """Take all steps on one batch; return the change, ready to be derived by the inputs."""
        weights = {name: tensor.requires_grad_() for name, tensor in self.sent.items()}
        for _ in range(self.steps):
            slopes, _ = self.network.slopes(weights, inputs, labels, again=True)
            weights = {name: tensor - self.rate * slopes[name] for name, tensor in weights.items()}
        return {name: tensor - self.sent[name] for name, tensor in weights.items()}

    def unexplained(self, change: Weights) -> Tensor:
        """Return the share of the update that such a change leaves over."""
        over = torch.stack([(change[name] - tensor).square().sum() for name, tensor in self.update.items()])
        whole = torch.stack([tensor.square().sum() for tensor in self.update.values()])
        share: Tensor = (over.sum() / whole.sum()).sqrt()
        return share

    def shown(self, batches: Sequence["Batch"]) -> Reconstruction:
        """Say what was found of all steps."""
        inputs, labels, certified = (
            torch.cat([getattr(batch, name) for batch in batches])
            for name in ("inputs", "labels", "certified")
        )
        size = self.each * self.steps
        if len(inputs) < size:
            log.warning("found %d of %d images: those of %d steps", len(inputs), size, len(batches))
        first = linear_chain(self.model, self.task, self.observation)[0][0]
        guess = reconstruction(
            self.task, first, inputs, labels=(labels, torch.ones_like(labels)), certified=certified, size=size
        )
        return dataclasses.replace(guess, residual=max(batch.residual for batch in batches))
