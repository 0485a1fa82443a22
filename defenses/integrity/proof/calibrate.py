"""What tells honest recomputation from a lie, measured: errors of the former, sizes of the latter.

Paper: Jia et al., Proof-of-Learning: Definitions and Practice (S&P 2021): table I, figures 1 to 3
    (reproduction), table II and figure 4 (initialisation), figure 5 (concatenation).
"""

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from defenses.integrity.proof.central import batch_at, central_indices, train_centrally
from defenses.integrity.proof.distances import DISTANCES, distance
from defenses.integrity.proof.initialisation import initial_problem
from defenses.integrity.proof.verify import Thoroughness, chosen_places
from fedsim.errors import FedsimError
from fedsim.interfaces import CentralTraining, Finding
from fedsim.randomness import generator
from fedsim.training import Batch, Trace, apply_step, batch_gradient, load_weights, sgd_step, weights_of
from fedsim.types import Weights

SAFETY = 10.0  # delta, in units of the largest honest error
LEAST = 1e-9  # where nothing differed here, another machine may still
Step = Callable[[nn.Module, Batch, float], None]


@dataclass(frozen=True, kw_only=True)
class Variation:
    """Another way of computing the same steps."""

    name: str
    step: Step
    around: Callable[[], Any] = nullcontext
    exact: bool = True  # float32: what a verifier must put up with


def calibrate(training: CentralTraining, kind: str) -> list[Finding]:
    """Run the studies that are asked for."""
    studies: dict[str, Callable[[CentralTraining, str], Iterator[Finding]]] = {
        "reproduction": reproduction,
        "initialisation": initialisation,
        "concatenation": concatenation,
        "costs": costs,
        "revealed": revealed,
    }
    if unknown := [name for name in training.study if name not in studies]:
        raise FedsimError(f"proof.study: expected some of {', '.join(studies)}, got {unknown[0]!r}")
    return [finding for name in training.study for finding in studies[name](training, kind)]


def reproduction(training: CentralTraining, kind: str) -> Iterator[Finding]:
    """Errors of recomputing k steps, by k and by what differs; the distance of unrelated models; a delta."""
    whole = train_centrally(training, 1)
    other = train_centrally(training, training.steps, number=1)
    reference = {name: distance(name, whole.checkpoints[-1], other.checkpoints[-1]) for name in DISTANCES}
    for name, value in reference.items():
        yield Finding(study="reproduction", case="unrelated models", figure=f"d_ref {name}", value=value)
    for interval in training.intervals:
        largest = 0.0
        for variation in variations(training):
            errors = dict.fromkeys(DISTANCES, 0.0)
            for start in _starts(training.steps, interval):
                again = _recompute(whole, training, start, interval, variation)
                claimed = whole.checkpoints[min(start + interval, training.steps)]
                errors = {name: max(value, distance(name, again, claimed)) for name, value in errors.items()}
            case = f"k={interval}, {variation.name}"
            for name, value in errors.items():
                yield Finding(study="reproduction", case=case, figure=name, value=value)
                share = value / reference[name] if reference[name] else 0.0
                yield Finding(study="reproduction", case=case, figure=f"{name} / d_ref", value=share)
            if variation.exact:
                largest = max(largest, errors[kind])
        case = f"k={interval}, delta for {kind}"
        yield Finding(study="reproduction", case=case, figure="delta", value=max(SAFETY * largest, LEAST))


def variations(training: CentralTraining) -> list[Variation]:
    """Return how an honest verifier's machine may differ, and two precisions that do not pass."""
    more = training.threads + 1
    return [
        Variation(name="the same", step=sgd_step),
        Variation(name=f"{more} threads", step=sgd_step, around=lambda: _threads(more)),
        Variation(name="permuted batch", step=_permuted),
        Variation(name="micro-batches", step=_micro_batches),
        Variation(name="other kernels", step=sgd_step, around=_plain_kernels),
        Variation(name="bfloat16", step=sgd_step, around=_bfloat16, exact=False),
        Variation(name="float16 checkpoints", step=sgd_step, exact=False),
    ]


def initialisation(training: CentralTraining, kind: str) -> Iterator[Finding]:
    """After how many steps the tests tell weights from fresh ones; false alarms on the latter."""
    fresh = _fresh(training)
    for number in range(1, 4):
        model, first = training.fresh(1000 + number), float(training.steps)
        for step in range(training.steps):
            if initial_problem(weights_of(model), fresh) is not None:
                first = float(step)
                break
            sgd_step(
                model, batch_at(training, central_indices(training, step, number)), training.learning_rate
            )
        yield Finding(
            study="initialisation", case=f"training {number}", figure="first step told", value=first
        )
    wrong = [initial_problem(weights_of(training.fresh(2000 + number)), fresh) for number in range(20)]
    share = sum(problem is not None for problem in wrong) / len(wrong)
    yield Finding(study="initialisation", case="20 fresh models", figure="false alarms", value=share)


def concatenation(training: CentralTraining, kind: str) -> Iterator[Finding]:
    """How much longer the jump between two trainings is than the largest honest update."""
    one, other = train_centrally(training, 1), train_centrally(training, training.steps, number=1)
    sizes = [distance("l2", a, b) for a, b in zip(one.checkpoints, one.checkpoints[1:], strict=False)]
    jump = distance("l2", one.checkpoints[-1], other.checkpoints[-1])
    case = f"{training.steps} steps"
    yield Finding(study="concatenation", case=case, figure="largest update", value=max(sizes))
    yield Finding(study="concatenation", case=case, figure="jump", value=jump)
    yield Finding(study="concatenation", case=case, figure="jump / largest", value=jump / max(sizes))


def costs(training: CentralTraining, kind: str) -> Iterator[Finding]:
    """What recording costs on top of training, at one checkpoint an epoch, by the clock."""
    epoch = max(1, len(training.train.labels) // training.batch_size)
    plain, recorded = list[float](), list[float]()
    for _ in range(3):
        started = time.perf_counter()
        model = training.fresh(0)
        for step in range(training.steps):
            sgd_step(model, batch_at(training, central_indices(training, step)), training.learning_rate)
        plain.append(time.perf_counter() - started)
        started = time.perf_counter()
        train_centrally(training, epoch)
        recorded.append(time.perf_counter() - started)
    share = min(recorded) / min(plain) - 1
    yield Finding(study="costs", case=f"k={epoch}", figure="recording / training", value=share)


def revealed(training: CentralTraining, kind: str) -> Iterator[Finding]:
    """Which share of the data a verifier gets to see, counted and by 1 - (1 - (Q + R) k / S)^E."""
    total = len(training.train.labels)
    epoch = max(1, total // training.batch_size)
    how = Thoroughness(top=1, random=1, epoch=epoch)
    for interval in training.intervals:
        trace = train_centrally(training, interval)
        places = chosen_places(trace, how, generator(training.seed, "revealed"))
        seen = {index for place in places for step in trace.span(place) for index in trace.indices[step]}
        share = min(1.0, 2 * interval / epoch)
        expected = 1 - (1 - share) ** (training.steps / epoch)
        case = f"k={interval}, Q=1, R=1"
        yield Finding(study="revealed", case=case, figure="of the data", value=len(seen) / total)
        yield Finding(study="revealed", case=case, figure="by the formula", value=expected)


def _starts(steps: int, interval: int) -> list[int]:
    """Return up to twenty places to recompute from, spread over the training."""
    places = list(range(0, steps, interval))
    return places[:: max(1, len(places) // 20)]


def _recompute(
    trace: Trace, training: CentralTraining, start: int, interval: int, variation: Variation
) -> Weights:
    model = training.fresh(0)
    first = trace.checkpoints[start]
    if variation.name == "float16 checkpoints":
        first = {name: tensor.half().float() for name, tensor in first.items()}
    load_weights(model, first)
    with variation.around():
        for step in range(start, min(start + interval, training.steps)):
            variation.step(model, batch_at(training, torch.tensor(trace.indices[step])), trace.learning_rate)
    return weights_of(model)


def _fresh(training: CentralTraining) -> Callable[[int], Weights]:
    return lambda number: weights_of(training.fresh(number + 1))


def _permuted(model: nn.Module, batch: Batch, learning_rate: float) -> None:
    order = torch.randperm(len(batch.labels), generator=generator(0, "permuted"))
    sgd_step(model, Batch(images=batch.images[order], labels=batch.labels[order]), learning_rate)


def _micro_batches(model: nn.Module, batch: Batch, learning_rate: float) -> None:
    """Add up gradients of quarters, as a machine of less memory would."""
    total: dict[str, torch.Tensor] = {}
    size = max(1, len(batch.labels) // 4)
    for images, labels in zip(torch.split(batch.images, size), torch.split(batch.labels, size), strict=True):
        gradient, _ = batch_gradient(model, images, labels)
        share = len(labels) / len(batch.labels)
        total = {name: total.get(name, 0) + share * tensor for name, tensor in gradient.items()}
    apply_step(model, total, learning_rate)


@contextmanager
def _threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _plain_kernels() -> Iterator[None]:
    with warnings.catch_warnings():  # on GPUs that are not here
        warnings.simplefilter("ignore")
        with torch.backends.mkldnn.flags(enabled=False):
            yield


def _bfloat16() -> Any:
    return torch.autocast("cpu", dtype=torch.bfloat16)
