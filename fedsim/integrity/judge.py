"""The verifier's side of the forging game: is this other batch what the step was taken on?

Paper: Suliman et al., Towards a Re-evaluation of Data Forging Attacks in Practice (2024), algorithm 1.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedsim.core.errors import in_words
from fedsim.core.training import Batch, arithmetic, load_weights, sgd_step, weights_of
from fedsim.core.types import Task, Weights
from fedsim.defenses.integrity.proof.distances import distance
from fedsim.defenses.integrity.proof.domain import (
    batch_problem,
    domain_of,
    examples_of,
    images_problem,
    same_batch,
)
from fedsim.defenses.integrity.proof.reproduction import LEAST, SAFETY, variations

EPSILON = torch.finfo(torch.float32).eps


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


@dataclass(frozen=True, kw_only=True)
class StepVerdict:
    """What a verifier finds of the claim that a step was taken on another batch."""

    accepted: bool
    check: str = ""  # the one that failed: domain, distinct, gone or step
    reason: str = ""
    domain: str  # the strictest that the claimed batch lies in
    gone: int  # of the unwanted examples, those that do not appear
    error: float  # of the recomputed weights, l2
    benign: float  # the largest of honest recomputations
    delta: float


def judge_step(step: RecordedStep, claimed: Batch, domain: str, delta: float | None) -> StepVerdict:
    """Recompute the step on the claimed batch, and honestly in other ways for comparison."""
    size, dtype = len(step.batch.labels), step.batch.images.dtype
    benign = honest_error(step)
    limit = max(SAFETY * benign, LEAST * torch.finfo(dtype).eps / EPSILON) if delta is None else delta
    check, reason, error, gone = "", "", float("nan"), 0
    if problem := images_problem(claimed, size, step.task, dtype):
        check, reason = "domain", problem
    else:
        try:
            error = _error(step, claimed)
        except Exception as failure:  # whatever a model makes of what somebody claims
            check, reason = "domain", f"the model does not take the batch: {in_words(failure)}"
    if not check:
        gone = number_gone(step, claimed)
        if same_batch(step.batch, claimed):
            check, reason = "distinct", "the same examples as in the trace"
        elif problem := batch_problem(claimed, size, step.task, domain, dtype):
            check, reason = "domain", problem
        elif gone < len(step.unwanted):
            left = len(step.unwanted) - gone
            check, reason = "gone", f"{left} of {len(step.unwanted)} unwanted examples are still there"
        elif not error <= limit:
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
    )


def number_gone(step: RecordedStep, claimed: Batch) -> int:
    """Return how many of the unwanted examples, image and label, are nowhere in the claimed batch."""
    own, others = examples_of(step.batch), set(examples_of(claimed))
    return sum(own[place] not in others for place in step.unwanted.tolist())


def honest_error(step: RecordedStep) -> float:
    """Return the largest error of recomputing a step on its own batch, over what may differ honestly."""
    errors = list[float]()
    for variation in variations(step.threads):
        if variation.exact:
            load_weights(step.model, step.before)
            with arithmetic(step.precision), variation.around():
                variation.step(step.model, step.batch, step.learning_rate)
            errors.append(distance("l2", weights_of(step.model), step.after))
    return max(errors)


def _error(step: RecordedStep, claimed: Batch) -> float:
    load_weights(step.model, step.before)
    with arithmetic(step.precision):
        sgd_step(step.model, claimed, step.learning_rate)
    return distance("l2", weights_of(step.model), step.after)
