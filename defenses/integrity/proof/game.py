"""The verifier's side of the forging game: is this other batch what the step was taken on?

Paper: Suliman et al., Towards a Re-evaluation of Data Forging Attacks in Practice (2024), algorithm 1.
"""

import torch

from defenses.integrity.proof.distances import distance
from defenses.integrity.proof.domain import LABELS, batch_problem, domain_of, same_batch
from defenses.integrity.proof.reproduction import LEAST, SAFETY, variations
from defenses.integrity.proof.verify import Rejected
from fedsim.errors import in_words
from fedsim.interfaces import RecordedStep, StepVerdict
from fedsim.training import Batch, arithmetic, load_weights, sgd_step, weights_of

EPSILON = torch.finfo(torch.float32).eps


def judge_step(step: RecordedStep, claimed: Batch, domain: str, delta: float | None) -> StepVerdict:
    """Recompute the step on the claimed batch, and honestly in other ways for comparison."""
    size = len(step.batch.labels)
    benign = honest_error(step)
    floor = LEAST * torch.finfo(step.batch.images.dtype).eps / EPSILON
    limit = max(SAFETY * benign, floor) if delta is None else delta
    try:
        error = _error(step, claimed)
    except Rejected as rejected:
        return StepVerdict(
            accepted=False,
            check="data",
            reason=str(rejected),
            domain=LABELS,
            error=float("nan"),
            benign=benign,
            delta=limit,
        )
    check, reason = "", ""
    if same_batch(step.batch, claimed):
        check, reason = "distinct", "the same examples as in the trace"
    elif problem := batch_problem(claimed, size, step.task, domain):
        check, reason = "domain", problem
    elif not error <= limit:
        check, reason = "step", f"l2 {error:.3g} from what was recorded, at most {limit:.3g}"
    return StepVerdict(
        accepted=not check,
        check=check,
        reason=reason,
        domain=domain_of(claimed, size, step.task),
        error=error,
        benign=benign,
        delta=limit,
    )


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
    try:
        with arithmetic(step.precision):
            sgd_step(step.model, claimed, step.learning_rate)
    except Exception as error:  # whatever a model makes of what somebody claims
        raise Rejected("data", f"the model does not take the batch: {in_words(error)}") from error
    return distance("l2", weights_of(step.model), step.after)
