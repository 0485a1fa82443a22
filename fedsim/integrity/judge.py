"""The verifier's side of the forging game: is this other batch what the step was taken on?

Paper: Suliman et al., Towards a Re-evaluation of Data Forging Attacks in Practice (2024), algorithm 1.
"""

import copy
import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedsim.core.errors import in_words
from fedsim.core.training import Batch, arithmetic, exact_levels, load_weights, sgd_step, weights_of
from fedsim.core.types import Task, Weights
from fedsim.data.form import Form
from fedsim.defenses.integrity.proof.distances import distance
from fedsim.defenses.integrity.proof.domain import (
    batch_problem,
    domain_of,
    examples_of,
    images_problem,
    same_batch,
)
from fedsim.defenses.integrity.proof.reproduction import SAFETY, variations
from fedsim.integrity.nearness import NOTHING_NEAR, Near, nearness

ULPS = 8  # of a weight, root mean square: how far rounding takes two ways to the same weights


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordedStep:
    """A step of a trace, as a verifier knows it who trained himself."""

    model: nn.Module  # its weights are overwritten
    before: Weights
    after: Weights
    batch: Batch
    unwanted: Tensor  # places in the batch of the examples that must not appear
    task: Task
    learning_rate: float
    precision: str
    threads: int
    following: tuple[Batch, ...] = ()  # batches of further steps until weights are on record again
    calibration: Batch | None = None  # to measure honest errors on; None: the batch itself


@dataclass(frozen=True, kw_only=True)
class Demands:
    """What a verifier asks of a claimed batch."""

    domain: str = "uint8"  # where pixels must lie
    form: Form = field(default_factory=Form)  # rules of the data set, where the domain is uint8
    delta: float | None = None  # how far weights may end up; None: SAFETY times the honest error
    distance: str = "off"  # by what claimed images must keep away from unwanted ones
    least: float = 0.0  # how far


@dataclass(frozen=True, kw_only=True)
class StepVerdict:
    """What a verifier finds of the claim that a step was taken on another batch."""

    accepted: bool
    check: str = ""  # the one that failed: domain, distinct, gone, near or step
    reason: str = ""
    domain: str  # the strictest that the claimed batch lies in
    gone: int  # of the unwanted examples, those that do not appear
    error: float  # of the recomputed weights, l2
    benign: float  # the largest of honest recomputations
    delta: float
    once: bool  # would be accepted at the honest error itself
    twice: bool  # and at twice that
    twin: bool  # accepted, and the same weights in float64 but for rounding
    near: Near  # distance of the nearest claimed image to an unwanted one, by each rule


def judge_step(step: RecordedStep, claimed: Batch, demands: Demands) -> StepVerdict:
    """Recompute the step on the claimed batch, and honestly in other ways for comparison."""
    size, dtype = len(step.batch.labels), step.batch.images.dtype
    benign, floor = honest_error(step), last_places(step.after)
    limit = max(SAFETY * benign, floor) if demands.delta is None else demands.delta
    check, reason, error, gone, near = "", "", float("nan"), 0, NOTHING_NEAR
    if problem := images_problem(claimed, size, step.task, dtype):
        check, reason = "domain", problem
    else:
        try:
            error = _error(step, claimed)
        except Exception as failure:  # whatever a model makes of what somebody claims
            check, reason = "domain", f"the model does not take the batch: {in_words(failure)}"
    if not check:
        gone = number_gone(step, claimed)
        load_weights(step.model, step.before)
        near = nearness(step.model, step.before, step.batch, step.unwanted, claimed.images)
        check, reason = _objection(step, claimed, demands, gone, near)
    valid = not check
    if valid and not error <= limit:
        check, reason = "step", f"l2 {error:.3g} from what was recorded, at most {limit:.3g}"
    return StepVerdict(
        accepted=not check,
        check=check,
        reason=reason,
        domain=domain_of(claimed, size, step.task, dtype),
        gone=gone,
        error=error,
        benign=benign,
        delta=limit,
        once=valid and error <= max(benign, floor),
        twice=valid and error <= max(2 * benign, floor),
        twin=valid and error <= limit and is_twin(step, claimed),
        near=near,
    )


def _objection(
    step: RecordedStep, claimed: Batch, demands: Demands, gone: int, near: Near
) -> tuple[str, str]:
    """Return which check a batch fails before its step is looked at, and why; empty: none."""
    size, dtype = len(step.batch.labels), step.batch.images.dtype
    if same_batch(step.batch, claimed):
        return "distinct", "the same examples as in the trace"
    if problem := batch_problem(claimed, size, step.task, demands.domain, dtype):
        return "domain", problem
    if demands.domain == "uint8" and (problem := demands.form.problem(claimed.images)):
        return "domain", problem
    if gone < len(step.unwanted):
        left = len(step.unwanted) - gone
        return "gone", f"{left} of {len(step.unwanted)} unwanted examples are still there"
    if demands.distance != "off":
        gap = near[demands.distance]
        if gap is None:  # no check fails open
            return "near", f"{demands.distance} does not apply to these images"
        if not gap >= demands.least:
            found = f"{demands.distance} {gap:.3g}, at least {demands.least:g}"
            return "near", f"an unwanted example has a near copy: {found}"
    return "", ""


def is_twin(step: RecordedStep, claimed: Batch) -> bool:
    """Say whether two batches lead to the same weights in float64, but for rounding."""
    model, ends = copy.deepcopy(step.model).double(), list[Weights]()
    for batch in (step.batch, claimed):
        load_weights(model, {name: tensor.double() for name, tensor in step.before.items()})
        labels = batch.labels.double() if batch.labels.is_floating_point() else batch.labels
        sgd_step(model, Batch(images=exact_levels(batch.images), labels=labels), step.learning_rate)
        ends.append(weights_of(model))
    return distance("l2", *ends) <= last_places(ends[0])


def last_places(weights: Weights) -> float:
    """Return how far apart two ways to the same weights may end: some units in their last place."""
    flat = torch.cat([tensor.flatten() for tensor in weights.values()]).abs()
    ulps = torch.nextafter(flat, torch.full_like(flat, math.inf)) - flat
    return ULPS * float(ulps.double().square().mean().sqrt())


def number_gone(step: RecordedStep, claimed: Batch) -> int:
    """Return how many of the unwanted examples, image and label, are nowhere in the claimed batch."""
    own, others = examples_of(step.batch), set(examples_of(claimed))
    return sum(own[place] not in others for place in step.unwanted.tolist())


def honest_error(step: RecordedStep) -> float:
    """Return the largest error of recomputing a step, over what may differ honestly.

    On a batch of the verifier's own where there is one: who denies a batch does not show it.
    """
    batch, errors, after = step.batch, list[float](), step.after
    if step.calibration is not None:
        batch = step.calibration
        load_weights(step.model, step.before)
        with arithmetic(step.precision):
            for one in (batch, *step.following):
                sgd_step(step.model, one, step.learning_rate)
        after = weights_of(step.model)
    for variation in variations(step.threads):
        if variation.exact:
            load_weights(step.model, step.before)
            with arithmetic(step.precision), variation.around():
                for one in (batch, *step.following):
                    variation.step(step.model, one, step.learning_rate)
            errors.append(distance("l2", weights_of(step.model), after))
    return max(errors)


def _error(step: RecordedStep, claimed: Batch) -> float:
    load_weights(step.model, step.before)
    with arithmetic(step.precision):
        for one in (claimed, *step.following):
            sgd_step(step.model, one, step.learning_rate)
    return distance("l2", weights_of(step.model), step.after)
