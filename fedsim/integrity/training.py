"""Trainings outside of a federation: one model, one data set, epochs in random order, plain SGD."""

from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from fedsim.core import progress
from fedsim.core.randomness import generator
from fedsim.core.training import Batch, Trace, batch_digest, load_weights, sgd_step, weights_of
from fedsim.core.types import Task, Weights
from fedsim.data.images import Images


@dataclass(frozen=True, kw_only=True, eq=False)
class CentralTraining:
    """A training outside of a federation, to be proved, verified or studied."""

    fresh: Callable[[int], nn.Module]  # models of random initialisations
    train: Images
    task: Task
    steps: int
    batch_size: int
    learning_rate: float
    precision: str  # of the checkpoints in a proof
    seed: int
    keys: Path | None  # a folder of key files; None: keys that follow from the seed
    threads: int
    study: tuple[str, ...]  # what a calibration looks at
    intervals: tuple[int, ...]  # between checkpoints, to calibrate for
    batch_sizes: tuple[int, ...]  # to compare
    calibration: Path | None = None  # what `fedsim calibrate` wrote; None: delta is the audit's
    test: Images | None = None  # for accuracies; None: there are none
    parent: Path | None = None  # a model file that training begins at; None: a random initialisation
    drawn: Callable[[int], nn.Module] | None = (
        None  # a model of a seed that two parties agreed on; None: fresh
    )

    @property
    def epoch(self) -> int:
        """How many steps go once through the data."""
        return max(1, len(self.train.labels) // self.batch_size)


def train_centrally(
    training: CentralTraining, every: int, number: int = 0, parent: Weights | None = None
) -> Trace:
    """Train the `number`-th model on the `number`-th order of batches, and record the way.

    parent: weights to begin at in place of the model's own.
    """
    model = training.fresh(number)
    if parent is not None:
        load_weights(model, parent)
    checkpoints, digests, indices = [weights_of(model)], list[Future[str]](), list[tuple[int, ...]]()
    with (
        ThreadPoolExecutor(1) as beside,  # a batch is digested while the next step is computed
        progress.bar("steps", training.steps) as advance,
    ):
        for step in range(training.steps):
            chosen = central_indices(training, step, number)
            batch = batch_at(training, chosen)
            digests.append(beside.submit(batch_digest, batch))
            sgd_step(model, batch, training.learning_rate)
            indices.append(tuple(chosen.tolist()))
            if (step + 1) % every == 0 or step + 1 == training.steps:
                checkpoints.append(weights_of(model))
            advance(step + 1)
    return Trace(
        checkpoints=tuple(checkpoints),
        every=every,
        learning_rate=training.learning_rate,
        indices=tuple(indices),
        digests=tuple(digest.result() for digest in digests),
    )


def weights_before(training: CentralTraining, steps: Collection[int]) -> dict[int, Weights]:
    """Train up to the last of these steps, and return the weights before each of them alone."""
    model, found = training.fresh(0), dict[int, Weights]()
    with progress.bar("steps", max(steps)) as advance:
        for step in range(max(steps) + 1):
            if step in steps:
                found[step] = weights_of(model)
            if step < max(steps):
                sgd_step(model, batch_at(training, central_indices(training, step)), training.learning_rate)
            advance(step)
    return found


def central_indices(training: CentralTraining, step: int, number: int = 0) -> Tensor:
    """Return a step's examples: epochs in random order."""
    total = len(training.train.labels)
    size = min(training.batch_size, total)
    epoch, place = divmod(step, total // size)
    order = torch.randperm(total, generator=generator(training.seed, "central", number, epoch))
    return order[place * size : (place + 1) * size]


def batch_at(training: CentralTraining, indices: Tensor) -> Batch:
    """Return the examples at these indices."""
    return Batch(images=training.train.batch(indices), labels=training.train.labels[indices])
