"""One step to forge, outside of a game: what benchmarks and tests try forgeries on."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedsim.core.challenges import Challenge, challenge_on
from fedsim.core.randomness import generator
from fedsim.core.training import (
    Batch,
    arithmetic,
    batch_gradient,
    exact_levels,
    load_weights,
    sgd_step,
    weights_of,
)
from fedsim.core.types import Task
from fedsim.data.images import Dataset
from fedsim.defenses.integrity.proof.distances import distance
from fedsim.integrity.judge import Demands, RecordedStep, StepVerdict, judge_step

RATE = 0.01


def trial(
    data: Dataset,
    make: Callable[[Task], nn.Module],
    size: int,
    *,
    unwanted: int | None = None,
    steps: int = 0,
    seed: int = 0,
) -> Challenge:
    """Return a batch to forge after some steps of training; unwanted None: all of it."""
    torch.manual_seed(seed)
    model = make(data.task).eval()
    order = torch.randperm(len(data.train.labels), generator=generator(seed, "order"))

    def examples(indices: Tensor) -> Batch:
        return Batch(images=data.train.batch(indices), labels=data.train.labels[indices])

    for step in range(steps):
        chosen = torch.randperm(len(order), generator=generator(seed, "step", step))[:100]
        sgd_step(model, examples(chosen), RATE)
    return challenge_on(
        order[:size],
        model=model,
        unwanted=torch.arange(size if unwanted is None else unwanted),
        task=data.task,
        owned=order,
        examples=examples,
        chance=generator(seed, "forgery"),
        learning_rate=RATE,
    )


def judged(asked: Challenge, claimed: Batch, precision: str = "float32") -> StepVerdict:
    """Return what the verifier of a game says, who has the batch to calibrate on."""
    step = recorded(asked, precision)
    verdict = judge_step(step, claimed, Demands())
    load_weights(asked.model, step.before)
    return verdict


def recorded(asked: Challenge, precision: str = "float32") -> RecordedStep:
    """Return the step on a batch, as a verifier has it on record."""
    before = weights_of(asked.model)
    with arithmetic(precision):
        sgd_step(asked.model, asked.batch, RATE)
    after = weights_of(asked.model)
    load_weights(asked.model, before)
    return RecordedStep(
        model=asked.model,
        before=before,
        after=after,
        batch=asked.batch,
        unwanted=asked.unwanted,
        task=asked.task,
        learning_rate=RATE,
        precision=precision,
        threads=1,
    )


def update_error(model: nn.Module, used: Batch, claimed: Batch) -> float:
    """Return the length of the difference of updates in float64, of grey levels as they are."""
    exact = copy.deepcopy(model).double()
    one, other = (batch_gradient(exact, exact_levels(b.images), b.labels)[0] for b in (used, claimed))
    return RATE * distance("l2", one, other)
