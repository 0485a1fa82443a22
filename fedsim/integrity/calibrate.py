"""What tells honest recomputation from a lie, measured: errors of the former, sizes of the latter.

Paper: Jia et al., Proof-of-Learning: Definitions and Practice (S&P 2021): table II and figure 4
    (initialisation, p_values), figure 5 (concatenation), figures 8 to 10 (inversion). Of recomputation:
    recomputation.py.
"""

import time
from collections.abc import Callable, Iterator

from torch import nn

from fedsim.attacks.integrity.spoofing.inverse_gradient import SOLVERS, invert_step
from fedsim.core import progress
from fedsim.core.errors import FedsimError
from fedsim.core.randomness import generator
from fedsim.core.training import sgd_step, weights_of
from fedsim.core.types import Weights
from fedsim.defenses.integrity.proof.calibration import FILE as DELTAS
from fedsim.defenses.integrity.proof.calibration import as_text
from fedsim.defenses.integrity.proof.distances import distance
from fedsim.defenses.integrity.proof.expected import Thoroughness
from fedsim.defenses.integrity.proof.initialisation import DRAWS, initial_problem, smallest_p
from fedsim.defenses.integrity.proof.sampling import chosen_places
from fedsim.flower.evaluation import evaluate_model
from fedsim.integrity.recomputation import (
    accuracies,
    batch_sizes,
    calibrations,
    machines,
    precision,
    reproduction,
)
from fedsim.integrity.training import CentralTraining, batch_at, central_indices, train_centrally
from fedsim.lab.record import recorded
from fedsim.storage.findings import Finding, findings, keep_finding
from fedsim.storage.runfolder import RunFolder


def calibrate(
    training: CentralTraining, kind: str, folder: RunFolder, *, name: str, config_text: str
) -> list[Finding]:
    """Run the studies that are asked for into a run folder; each finding is kept as it comes.

    kind: of the distance that a delta is wanted for.
    """
    found = study(training, kind)
    folder.begin("calibration", config_text)
    with (
        recorded(folder, name, lambda: {"metrics": {}, "findings": len(findings(folder.storage))}),
        progress.bar("studies", len(training.study)) as advance,
    ):
        for finding in found:
            keep_finding(folder.storage, finding)
            advance(training.study.index(finding.study), f"{finding.study}, {finding.case}")
        if deltas := calibrations(training, kind, findings(folder.storage)):
            folder.storage.write_text(DELTAS, as_text(deltas))
    return findings(folder.storage)


def study(training: CentralTraining, kind: str) -> Iterator[Finding]:
    """Return what the studies that are asked for will find; one that there is not is refused at once."""
    studies: dict[str, Callable[[CentralTraining, str], Iterator[Finding]]] = {
        "reproduction": reproduction,
        "batch_sizes": batch_sizes,
        "precision": precision,
        "machines": machines,
        "accuracies": accuracies,
        "initialisation": initialisation,
        "p_values": p_values,
        "inversion": inversion,
        "concatenation": concatenation,
        "costs": costs,
        "revealed": revealed,
    }
    if unknown := [name for name in training.study if name not in studies]:
        raise FedsimError(f"proof.study: expected some of {', '.join(studies)}, got {unknown[0]!r}")
    return (finding for name in training.study for finding in studies[name](training, kind))


def initialisation(training: CentralTraining, kind: str) -> Iterator[Finding]:
    """After how many steps the tests tell weights from fresh ones, and how well these do; false alarms."""
    fresh = _fresh(training)
    for number in range(1, 4):
        model, first, case = training.fresh(1000 + number), float(training.steps), f"training {number}"
        for step in range(training.steps):
            if initial_problem(weights_of(model), fresh) is not None:
                first = float(step)
                break
            _train(model, training, step, number)
        yield Finding(study="initialisation", case=case, figure="first step told", value=first)
        if training.test is not None:
            found = evaluate_model(model, weights_of(model), training.test, "cpu")[0]
            yield Finding(study="initialisation", case=case, figure="accuracy there", value=found)
    wrong = [initial_problem(weights_of(training.fresh(2000 + number)), fresh) for number in range(20)]
    share = sum(problem is not None for problem in wrong) / len(wrong)
    yield Finding(study="initialisation", case="20 fresh models", figure="false alarms", value=share)


def p_values(training: CentralTraining, kind: str) -> Iterator[Finding]:
    """The smallest p-value of a Kolmogorov-Smirnov test over all tensors, step by step (figure 4)."""
    fresh = _fresh(training)
    drawn, model = [fresh(number) for number in range(DRAWS)], training.fresh(1001)
    for step in range(training.steps + 1):
        if step in (0, 1, 2, 5, 10, 20, 50, 100, 200, 500):
            found = smallest_p(weights_of(model), drawn)
            yield Finding(study="p_values", case=f"step {step}", figure="smallest p", value=found)
        if step < training.steps:
            _train(model, training, step, 1)


def inversion(training: CentralTraining, kind: str) -> Iterator[Finding]:
    """How far a step's start is found backwards, by solver and by gradients computed (figures 8 to 10)."""
    after, model = train_centrally(training, training.steps).checkpoints[-1], training.fresh(0)
    batch = batch_at(training, central_indices(training, training.steps - 1))
    for solver in SOLVERS:
        errors = invert_step(
            model, after, batch, training.learning_rate, solver=solver, iterations=15, tolerance=1e-12
        ).errors
        for calls in (1, 5, 10, 20):
            if calls <= len(errors):
                case = f"{solver}, {calls} gradients"
                least = min(errors[:calls])
                yield Finding(study="inversion", case=case, figure="linf", value=least)
        yield Finding(study="inversion", case=solver, figure="least linf", value=min(errors))


def _train(model: nn.Module, training: CentralTraining, step: int, number: int) -> None:
    sgd_step(model, batch_at(training, central_indices(training, step, number)), training.learning_rate)


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
    epoch, plain, traced = training.epoch, list[float](), list[float]()
    for _ in range(3):
        started = time.perf_counter()
        model = training.fresh(0)
        for step in range(training.steps):
            _train(model, training, step, 0)
        plain.append(time.perf_counter() - started)
        started = time.perf_counter()
        train_centrally(training, epoch)
        traced.append(time.perf_counter() - started)
    share = min(traced) / min(plain) - 1
    yield Finding(study="costs", case=f"k={epoch}", figure="recording / training", value=share)


def revealed(training: CentralTraining, kind: str) -> Iterator[Finding]:
    """Which share of the data a verifier gets to see, counted and by 1 - (1 - (Q + R) k / S)^E."""
    total, epoch = len(training.train.labels), training.epoch
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


def _fresh(training: CentralTraining) -> Callable[[int], Weights]:
    return lambda number: weights_of(training.fresh(number + 1))
