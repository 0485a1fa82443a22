"""Attack every saved observation, and score the guesses: one after another, or many processes at once."""

import copy
import dataclasses
import functools
import logging
import math
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from fedsim.core import progress
from fedsim.core.errors import FedsimError, in_words
from fedsim.core.interfaces import Defense
from fedsim.core.prior import Prior
from fedsim.core.randomness import generator
from fedsim.core.types import (
    ALL,
    Fault,
    Interrupted,
    KnownDefense,
    Observation,
    Reconstruction,
    Score,
    Truth,
    Weights,
)
from fedsim.flower.attack_one import Refusal, attack_one
from fedsim.lab.record import GaveUp
from fedsim.lab.scoring import (
    prior_alone_scores,
    prior_of,
    with_features,
    with_prior_alone,
    with_public_features,
)
from fedsim.metrics.baselines import scored
from fedsim.models.foreign import fitted
from fedsim.storage.logs import logged
from fedsim.storage.runfolder import RunFolder
from fedsim.storage.scores import ScoreRow

if TYPE_CHECKING:
    from fedsim.lab.experiment import Experiment

log = logging.getLogger(__name__)
FAULT = "fault"  # the metric name of a scores.csv line that reports a failure


@dataclass(frozen=True, kw_only=True)
class Errand:
    """An observation to attack, for a process that has nothing but the run folder."""

    rebuild: Callable[[], "Experiment"]
    source: RunFolder
    target: RunFolder
    round: int
    client: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """What came of an attack: its lines of scores.csv, and its failure if it failed."""

    rows: list[ScoreRow]
    fault: Fault | None = None
    interrupted: bool = False  # what it has counts, and the run ends


def assess(experiment: "Experiment", source: RunFolder, target: RunFolder) -> None:
    """Attack every saved observation, keep the guesses, and score them against the truth."""
    rows, failed = [fault_row(fault, experiment.attack_name) for fault in source.faults()], list[Fault]()
    places = source.observed()
    interrupted = False
    try:
        with progress.bar("attacks", len(places)) as advance:
            for done, outcome in enumerate(_outcomes(experiment, source, target, places), start=1):
                rows += outcome.rows
                if outcome.fault is not None:
                    failed.append(outcome.fault)
                interrupted = outcome.interrupted or interrupted
                advance(done)
        if interrupted:
            raise KeyboardInterrupt
    finally:  # an interrupted run keeps what it has
        target.write_scores(rows)
    if failed and len(failed) == len(places):
        words = f"the attack failed on all {len(places)} observations; the first: {failed[0].reason}"
        raise GaveUp(words) if all(isinstance(fault, Refusal) for fault in failed) else FedsimError(words)


def _outcomes(
    experiment: "Experiment", source: RunFolder, target: RunFolder, places: Sequence[tuple[int, int]]
) -> Iterator[Outcome]:
    """Attack the observations at these places, in order; several processes give the same bits as one."""
    if experiment.attackers == 1 or len(places) < 2:
        model = _attack_model(experiment)
        for place in places:
            yield (outcome := _outcome(experiment, model, source, target, *place))
            if outcome.interrupted:
                return
        return
    errands = (
        Errand(rebuild=experiment.rebuild, source=source, target=target, round=round, client=client)
        for round, client in places
    )
    yield from experiment.engine.spread(run_errand, errands, min(experiment.attackers, len(places)))


def run_errand(errand: Errand) -> Outcome:
    """Attack one observation in a process that was started for such errands."""
    progress.silence()
    experiment = errand.rebuild()
    torch.set_num_threads(experiment.threads)
    with logged(errand.target.path):
        log.debug("attacking round %d, client %d", errand.round, errand.client)
        model = _errands_model(experiment)
        return _outcome(experiment, model, errand.source, errand.target, errand.round, errand.client)


def _attack_model(experiment: "Experiment") -> nn.Module:
    """Return the attack's own model, which holds what was sent: alike in a replay."""
    return copy.deepcopy(experiment.model).to(experiment.device)


@functools.lru_cache(maxsize=1)
def _errands_model(experiment: "Experiment") -> nn.Module:
    """Return it for a process that gets the same experiment with every errand."""
    return _attack_model(experiment)


def _outcome(
    experiment: "Experiment", model: nn.Module, source: RunFolder, target: RunFolder, round: int, client: int
) -> Outcome:
    try:
        seen = as_defended(source.observation(round, client), experiment)
        if experiment.knows_defense:
            seen = as_known(seen, experiment.defenses)
        observation = fitted(experiment.model, seen)  # the evaluator needs a foreign model's buffers, too
    except FedsimError as error:  # a file that cannot be read, or not by this model
        log.warning("round %d, client %d: %s", round, client, error)
        unread = Fault(round=round, client=client, reason=str(error))
        return Outcome(rows=[fault_row(unread, experiment.attack_name)], fault=unread)
    size = _size_row(experiment, observation)
    try:
        kept = target.guess(round, client, whole=True)  # of a resumed run
        found = kept or attack_one(experiment.attack, model, experiment.task, seen)
    except Interrupted as stop:
        target.keep_guess(round, client, stop.guess, partial=True)
        # The guess itself stays here: a tensor that travels leaves a folder behind when its sender is ended.
        rows = _scores(experiment, source, target, observation, stop.guess)
        return Outcome(rows=rows, interrupted=True)
    if isinstance(found, Fault):
        log.warning("round %d, client %d: %s", round, client, found.reason)
        return Outcome(rows=[fault_row(found, experiment.attack_name), *size], fault=found)
    if kept is None:
        target.keep_guess(round, client, found)
    return Outcome(rows=_scores(experiment, source, target, observation, found) + size)


def as_defended(observation: Observation, experiment: "Experiment") -> Observation:
    """Return what a recorded reply would have been, had the defenses that a replay adds acted on it."""
    number, received = experiment.added_defenses, observation.received
    reply: Weights = {name: e for name, e in received.items() if e.is_floating_point()}  # no counters
    for position, defense in enumerate(experiment.defenses[len(experiment.defenses) - number :]):
        place = position, observation.round, observation.client
        random = generator(experiment.seed, "added defense", *place)
        reply = defense.on_reply(reply, observation.kind, random)
    if not number:
        return observation
    return dataclasses.replace(observation, received={**received, **reply}, bytes=None)


def as_known(observation: Observation, defenses: Sequence[Defense]) -> Observation:
    """Add what an attacker makes of the defenses whose settings the threat model lets it know."""
    clients = len(observation.clients or (observation.client,))
    examples = None if observation.num_examples is None else observation.num_examples // clients
    one_reply = dataclasses.replace(observation, num_examples=examples)
    noise = relative = 0.0
    for defense in defenses:
        known = defense.known(one_reply)
        if defense.rescales:  # what is left of earlier noise, nobody can tell
            noise = relative = 0.0
        noise, relative = math.hypot(noise, known.noise), math.hypot(relative, known.relative_noise)
    told = KnownDefense(
        noise=noise / math.sqrt(clients),  # a mean of so many draws
        relative_noise=relative if clients == 1 else 0.0,
        zeros=any(defense.known(one_reply).zeros for defense in defenses),
    )
    return dataclasses.replace(observation, defense=told)


def _scores(
    experiment: "Experiment",
    source: RunFolder,
    target: RunFolder,
    observation: Observation,
    guess: Reconstruction,
) -> list[ScoreRow]:
    """Join a guess with its truth: the only place where both are in one hand."""
    truth = source.truth(observation.round, observation.client)
    if truth is None and observation.clients:  # a sum over clients has all their batches behind it
        truth = _union([source.truth(observation.round, client) for client in observation.clients])
        if truth is not None:
            target.keep_truth(truth)
    if truth is None:
        return []
    truth = dataclasses.replace(truth, inputs=experiment.task.inputs)
    scores, failed = list[Score | None](), list[ScoreRow]()
    prior: Prior | None = None
    try:
        prior = prior_of(experiment, observation, truth)
    except Exception as error:  # scores without a baseline say little, and more than none
        failed.append(_unscored(experiment, observation, "baselines", error))
    try:
        truth = with_features(experiment.model, observation, guess, truth)
        if prior is not None:
            prior = with_prior_alone(with_public_features(prior, experiment, observation, guess), guess)
    except Exception as error:  # metrics that need no features still count
        failed.append(_unscored(experiment, observation, "features of the truth", error))
    for metric in experiment.metrics:
        try:
            scores.append(scored(metric, guess, truth, prior))
        except Exception as error:  # the other metrics and batches still count
            failed.append(_unscored(experiment, observation, f"metric {type(metric).__name__}", error))
    scores += prior_alone_scores(experiment.metrics, guess, truth)
    return failed + [
        ScoreRow(
            round=observation.round,
            client=observation.client,
            attack=experiment.attack_name,
            metric=score.metric,
            value=score.value,
            baseline=score.baseline,
        )
        for score in scores
        if score is not None
    ]


def _unscored(experiment: "Experiment", observation: Observation, what: str, error: Exception) -> ScoreRow:
    """Return the line of scores.csv on what could not be scored of one client."""
    log.debug("%s failed:\n%s", what, traceback.format_exc())
    reason = f"{what} failed: {in_words(error)}"
    log.warning("round %d, client %d: %s", observation.round, observation.client, reason)
    fault = Fault(round=observation.round, client=observation.client, reason=reason)
    return fault_row(fault, experiment.attack_name)


def _union(truths: Sequence[Truth | None]) -> Truth | None:
    """Return the private batches of several clients as one, if all are known."""
    known = [truth for truth in truths if truth is not None]
    if len(known) < len(truths):
        return None
    images, labels = torch.cat([t.images for t in known]), torch.cat([t.labels for t in known])
    return Truth(round=known[0].round, client=ALL, images=images, labels=labels)


def _size_row(experiment: "Experiment", observation: Observation) -> list[ScoreRow]:
    """Return what the reply cost the client: no score of the attack, but what a defense is weighed with."""
    if observation.bytes is None:
        return []
    return [
        ScoreRow(
            round=observation.round,
            client=observation.client,
            attack=experiment.attack_name,
            metric="bytes",
            value=float(observation.bytes),
        )
    ]


def fault_row(fault: Fault, attack: str) -> ScoreRow:
    """Return the line of scores.csv that reports a failure."""
    return ScoreRow(
        round=fault.round, client=fault.client, attack=attack, metric=FAULT, value=None, error=fault.reason
    )
