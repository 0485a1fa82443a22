"""Errors of honest recomputation: by checkpoint interval, batch size, precision, and machine.

Paper: Jia et al., Proof-of-Learning: Definitions and Practice (S&P 2021): table I, figures 1 to 3
    (reproduction).
    Suliman et al., Towards a Re-evaluation of Data Forging Attacks in Practice (2024), section 4.1: figure 2
    (batch_sizes), table 2 (precision), table 3 (machines), appendix B (accuracies). Theirs are GPUs; threads
    and kernels stand in.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from fedsim.core.training import Trace, arithmetic, load_weights, weights_of
from fedsim.core.types import Weights
from fedsim.defenses.integrity.proof.calibration import Calibration, shape_of
from fedsim.defenses.integrity.proof.distances import DISTANCES, distance
from fedsim.defenses.integrity.proof.machine import machine
from fedsim.defenses.integrity.proof.reproduction import (
    LEAST,
    SAFETY,
    Variation,
    deterministic,
    nested,
    plain_kernels,
    stand_ins,
    variations,
)
from fedsim.flower.evaluation import evaluate_model
from fedsim.integrity.training import CentralTraining, batch_at, train_centrally
from fedsim.storage.findings import Finding


def reproduction(training: CentralTraining, kind: str) -> Iterator[Finding]:
    """Errors of recomputing k steps, by k and by what differs; the distance of unrelated models; a delta."""
    whole = train_centrally(training, 1)
    other = train_centrally(training, training.steps, number=1)
    reference = {name: distance(name, whole.checkpoints[-1], other.checkpoints[-1]) for name in DISTANCES}
    for name, value in reference.items():
        yield Finding(study="reproduction", case="unrelated models", figure=f"d_ref {name}", value=value)
    model = training.fresh(0)
    for interval in training.intervals:
        largest = 0.0
        for variation in (*variations(training.threads), deterministic(training.threads)):
            errors = dict.fromkeys(DISTANCES, 0.0)
            for start in range(0, training.steps, interval):  # all: rounding leaps in a few of them
                again = recompute(model, whole, training, start, interval, variation)
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


def calibrations(training: CentralTraining, kind: str, found: Iterable[Finding]) -> list[Calibration]:
    """Return the deltas among the findings of `reproduction`, each bound to what it was measured for."""
    deltas = {finding.case: finding.value for finding in found if finding.figure == "delta"}
    with plain_kernels():
        plain = machine()
    return [
        Calibration(
            delta=deltas[case],
            distance=kind,
            every=interval,
            learning_rate=training.learning_rate,
            batch_size=min(training.batch_size, len(training.train.labels)),
            model=shape_of(weights_of(training.fresh(0))),
            machines=sorted({machine(), plain}),
            intervals=-(-training.steps // interval),
        )
        for interval in training.intervals
        if (case := f"k={interval}, delta for {kind}") in deltas
    ]


def batch_sizes(training: CentralTraining, kind: str) -> Iterator[Finding]:
    """Errors of recomputing single steps, by batch size and by what differs; the model's size."""
    number = sum(parameter.numel() for parameter in training.fresh(0).parameters())
    yield Finding(study="batch_sizes", case="the model", figure="parameters", value=float(number))
    total = len(training.train.labels)
    for size in sorted({min(size, total) for size in training.batch_sizes}):
        sized = replace(training, batch_size=size)
        trace = train_centrally(sized, 1)
        for variation in _exact(sized):
            case = f"b={size}, {variation.name}"
            yield from _single_steps("batch_sizes", case, trace, sized, variation, kind)


def precision(training: CentralTraining, kind: str) -> Iterator[Finding]:
    """Errors of recomputing single steps in the precision that they were done in (no loss scaling)."""
    for name in ("float32", "bfloat16", "float16"):
        around = partial(arithmetic, name)
        with around():
            trace = train_centrally(training, 1)
        for variation in _exact(training):
            alike = replace(variation, around=nested(around, variation.around))
            case = f"{name}, {variation.name}"
            yield from _single_steps("precision", case, trace, training, alike, kind)


def machines(training: CentralTraining, kind: str) -> Iterator[Finding]:
    """Errors of recomputing single steps on every stand-in for a machine that were done on every other."""
    for there in stand_ins(training.threads):
        with there.around():
            trace = train_centrally(training, 1)
        for here in stand_ins(training.threads):
            case = f"{there.name} -> {here.name}"
            yield from _single_steps("machines", case, trace, training, here, kind)


def accuracies(training: CentralTraining, kind: str) -> Iterator[Finding]:
    """What other machines make of the same training in the end, by batch size: the model's test accuracy."""
    total = len(training.train.labels)
    for size in sorted({min(size, total) for size in training.batch_sizes}):
        found = list[float]()
        for there in stand_ins(training.threads):
            with there.around():
                trace = train_centrally(replace(training, batch_size=size), training.steps)
            assert training.test is not None  # of every data set
            share = evaluate_model(training.fresh(0), trace.checkpoints[-1], training.test, "cpu")[0]
            found.append(share)
            case = f"b={size}, {there.name}"
            yield Finding(study="accuracies", case=case, figure="accuracy", value=share)
        spread = max(found) - min(found)
        yield Finding(study="accuracies", case=f"b={size}", figure="largest difference", value=spread)


def _exact(training: CentralTraining) -> list[Variation]:
    return [variation for variation in variations(training.threads) if variation.exact]


def _single_steps(
    study: str, case: str, trace: Trace, training: CentralTraining, variation: Variation, kind: str
) -> Iterator[Finding]:
    """Yield the largest and the mean error over the steps of a trace, each done again by itself."""
    model, errors = training.fresh(0), list[float]()
    for start in _starts(training.steps, 1):
        again = recompute(model, trace, training, start, 1, variation)
        errors.append(distance(kind, again, trace.checkpoints[start + 1]))
    yield Finding(study=study, case=case, figure=f"largest {kind}", value=max(errors))
    yield Finding(study=study, case=case, figure=f"mean {kind}", value=sum(errors) / len(errors))


def _starts(steps: int, interval: int) -> list[int]:
    """Return some twenty places to recompute from, spread over the training."""
    places = list(range(0, steps, interval))
    return places[:: max(1, len(places) // 20)]


def recompute(
    model: nn.Module,
    trace: Trace,
    training: CentralTraining,
    start: int,
    interval: int,
    variation: Variation,
) -> Weights:
    """Train from a checkpoint of a trace for an interval, computing as a variation does."""
    first = trace.checkpoints[start]
    if variation.name == "float16 checkpoints":
        first = {name: tensor.half().float() for name, tensor in first.items()}
    load_weights(model, first)
    with variation.around():
        for step in range(start, min(start + interval, training.steps)):
            variation.step(model, batch_at(training, torch.tensor(trace.indices[step])), trace.learning_rate)
    return weights_of(model)
