"""An experiment from first round to report: play, attack, score, write."""

import copy
import dataclasses
import logging
import math
import platform
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import nn

from fedsim import __version__, progress
from fedsim.client import ClientSetup, client_app
from fedsim.client_states import ClientStates
from fedsim.data.images import Images
from fedsim.engines.engine import Apps, Engine
from fedsim.errors import FedsimError, in_words
from fedsim.federation import Federation
from fedsim.interfaces import Attack, Audit, Defense, Metric
from fedsim.logs import logged
from fedsim.models.batch_norm import set_batch_norm
from fedsim.models.foreign import fitted
from fedsim.models.last_linear import last_linear_name, layer_inputs
from fedsim.runfolder import RunFolder, ScoreRow, metric_lines, write_text
from fedsim.server import ServerSetup, server_app
from fedsim.training import load_weights
from fedsim.types import (
    ALL,
    Fault,
    Interrupted,
    KnownDefense,
    Observation,
    Reconstruction,
    Score,
    Task,
    Truth,
    Verdict,
)

log = logging.getLogger(__name__)
GAVE_UP = "gave up"  # a run's status when the attack refused every observation
FAULT = "fault"  # the metric name of a scores.csv line that reports a failure
LIBRARIES = ("torch", "torchvision", "flwr", "numpy", "hydra-core")


class Refusal(Fault):
    """An attack's own words on why it cannot work on an observation; a plain Fault is a crash."""


class GaveUp(FedsimError):
    """The attack says of every observation why it cannot work on it: a defence may be meant to do that."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Experiment:
    """Everything that a run needs, built from its config."""

    name: str
    seed: int
    config_text: str
    prepare_clients: Callable[[Path], Callable[[], ClientSetup]]
    task: Task
    test: Images
    model: nn.Module
    federation: Federation
    engine: Engine
    attack: Attack
    attack_name: str
    metrics: tuple[Metric, ...]
    defenses: tuple[Defense, ...]
    audit: Audit | None
    cheats: tuple[str, ...]  # how each client cheats; empty: it does not
    knows_defense: bool  # the threat model: the attacker is told the defences' settings
    device: str
    threads: int


def run(experiment: Experiment, path: Path) -> RunFolder:
    """Play the rounds, attack what the server saw, score it, and leave everything in the run folder."""
    folder = _new_folder(experiment, path)
    with recorded(experiment, folder):
        play(experiment, folder)
        assess(experiment, folder, folder)
    return folder


def replay(experiment: Experiment, source: RunFolder, path: Path) -> RunFolder:
    """Attack an earlier run's observations again, without training, into a run folder of its own."""
    if source.count_observations() == 0:
        raise FedsimError(
            f"{source.path} holds no observations to attack. Remedy: name a run with attacked rounds."
        )
    folder = _new_folder(experiment, path)
    with recorded(experiment, folder):
        folder.adopt(source)
        assess(experiment, source, folder)
    return folder


def play(experiment: Experiment, folder: RunFolder, done: int = 0) -> None:
    """Play the rounds that are left; observations and truth land in the run folder as they come."""
    setup = ServerSetup(
        model=experiment.model,
        task=experiment.task,
        test=experiment.test,
        federation=experiment.federation,
        attack=experiment.attack,
        audit=experiment.audit,
        folder=folder.path,
        sums_replies=any(defense.sums_replies for defense in experiment.defenses),
        seed=experiment.seed,
        device=experiment.device,
        threads=experiment.threads,
        keep_observation=folder.keep_observation,
        keep_fault=folder.keep_fault,
        keep_round=folder.keep_round,
        keep_verdict=folder.keep_verdict,
        keep_weights=folder.keep_weights,
        done=done,
    )
    if any(experiment.cheats):
        folder.keep_cheats(experiment.cheats)
    clients = client_app(
        experiment.prepare_clients(folder.path), folder.keep_truth, ClientStates(folder.path / "clients")
    )
    apps = Apps(
        server=server_app(setup),
        client=clients,
        clients=experiment.federation.clients,
        rounds=experiment.federation.rounds,
        folder=folder.path.resolve(),
        done=done,
    )
    try:
        experiment.engine.play(apps)
    finally:  # a run that ends here still says in scores.csv which clients failed
        folder.write_scores([_fault_row(fault, experiment.attack_name) for fault in folder.faults()])


def assess(experiment: Experiment, source: RunFolder, target: RunFolder) -> None:
    """Attack every saved observation, keep the guesses, and score them against the truth."""
    rows, failed = [_fault_row(fault, experiment.attack_name) for fault in source.faults()], []
    total = source.count_observations()
    # The attack's own model, holding what was sent: alike in a replay.
    model = copy.deepcopy(experiment.model).to(experiment.device)
    try:
        with progress.bar("attacks", total) as advance:
            for done, seen in enumerate(source.observations(), start=1):
                fitted(experiment.model, seen)  # a foreign model's buffers, which the evaluator needs too
                observation = _as_known(experiment, fitted(model, seen))
                load_weights(model, observation.sent)
                try:
                    kept = target.whole_guess(observation.round, observation.client)  # of a resumed run
                    found = kept or _attack(experiment, model, observation)
                except Interrupted as stop:  # what it has counts, and the run ends
                    target.keep_guess(observation.round, observation.client, stop.guess, partial=True)
                    rows += _scores(experiment, source, target, observation, stop.guess)
                    raise
                if isinstance(found, Fault):
                    failed.append(found)
                    rows.append(_fault_row(found, experiment.attack_name))
                else:
                    target.keep_guess(observation.round, observation.client, found)
                    rows += _scores(experiment, source, target, observation, found)
                rows += _size_row(experiment, observation)
                advance(done)
    finally:  # an interrupted run keeps what it has
        target.write_scores(rows)
    if failed and len(failed) == total:
        words = f"the attack failed on all {total} observations; the first: {failed[0].reason}"
        raise GaveUp(words) if all(isinstance(fault, Refusal) for fault in failed) else FedsimError(words)


def _as_known(experiment: Experiment, observation: Observation) -> Observation:
    """Add what the threat model lets the attacker know of the defences."""
    if not experiment.knows_defense:
        return observation
    clients = len(observation.clients or (observation.client,))
    examples = None if observation.num_examples is None else observation.num_examples // clients
    one_reply = dataclasses.replace(observation, num_examples=examples)
    noise = relative = 0.0
    for defense in experiment.defenses:
        known = defense.known(one_reply)
        if defense.rescales:  # what is left of earlier noise, nobody can tell
            noise = relative = 0.0
        noise, relative = math.hypot(noise, known.noise), math.hypot(relative, known.relative_noise)
    told = KnownDefense(
        noise=noise / math.sqrt(clients),  # a mean of so many draws
        relative_noise=relative if clients == 1 else 0.0,
        zeros=any(defense.known(one_reply).zeros for defense in experiment.defenses),
    )
    return dataclasses.replace(observation, defense=told)


def _attack(experiment: Experiment, model: nn.Module, observation: Observation) -> Reconstruction | Fault:
    try:
        return experiment.attack.run(model, experiment.task, [observation])
    except Exception as error:
        log.debug("attack failed:\n%s", traceback.format_exc())
        reason = f"the attack failed: {in_words(error)}"
        log.warning("round %d, client %d: %s", observation.round, observation.client, reason)
        kind = Refusal if isinstance(error, FedsimError) else Fault
        return kind(round=observation.round, client=observation.client, reason=reason)


def _scores(
    experiment: Experiment,
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
    if guess.embeddings is not None or guess.probabilities is not None:
        model = copy.deepcopy(experiment.model)
        layer = guess.embedding_layer or last_linear_name(model, experiment.task.input_shape)
        set_batch_norm(model, observation.batch_norm)
        batch = len(truth.images) // (observation.local_steps or 1)  # BatchNorm may look at whole batches
        embeddings, logits = layer_inputs(model, layer, observation.sent, truth.images, max(1, batch))
        truth = dataclasses.replace(truth, embeddings=embeddings, probabilities=logits.softmax(dim=1))
    scores, failed = list[Score | None](), list[ScoreRow]()
    for metric in experiment.metrics:
        try:
            scores.append(metric.score(guess, truth))
        except Exception as error:  # the other metrics and batches still count
            log.debug("metric failed:\n%s", traceback.format_exc())
            reason = f"metric {type(metric).__name__} failed: {in_words(error)}"
            log.warning("round %d, client %d: %s", observation.round, observation.client, reason)
            fault = Fault(round=observation.round, client=observation.client, reason=reason)
            failed.append(_fault_row(fault, experiment.attack_name))
    return failed + [
        ScoreRow(
            round=observation.round,
            client=observation.client,
            attack=experiment.attack_name,
            metric=score.metric,
            value=score.value,
            blind=score.blind,
        )
        for score in scores
        if score is not None
    ]


def _union(truths: Sequence[Truth | None]) -> Truth | None:
    """Return the private batches of several clients as one, if all are known."""
    known = [truth for truth in truths if truth is not None]
    if len(known) < len(truths):
        return None
    images, labels = torch.cat([t.images for t in known]), torch.cat([t.labels for t in known])
    return Truth(round=known[0].round, client=ALL, images=images, labels=labels)


def _size_row(experiment: Experiment, observation: Observation) -> list[ScoreRow]:
    """Return what the reply cost the client: no score of the attack, but what a defence is weighed with."""
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


def _fault_row(fault: Fault, attack: str) -> ScoreRow:
    return ScoreRow(
        round=fault.round, client=fault.client, attack=attack, metric=FAULT, value=None, error=fault.reason
    )


@contextmanager
def recorded(experiment: Experiment, folder: RunFolder) -> Iterator[None]:
    """Log to the run folder, and write summary and report however the block ends."""
    from fedsim.report.run import write_report

    with logged(folder.path):
        started, status = time.perf_counter(), "complete"
        torch.set_num_threads(experiment.threads)
        try:
            yield
        except KeyboardInterrupt:
            status = "interrupted"
            raise
        except GaveUp as error:
            status = f"{GAVE_UP}: {error}"
            log.error("%s", error)
            raise
        except Exception as error:
            status = f"failed: {in_words(error)}"
            log.error("%s", error)
            log.debug("%s", traceback.format_exc())
            raise
        finally:
            folder.write_summary(summarise(experiment, folder, status, time.perf_counter() - started))
            try:
                write_report(folder)
            except Exception:  # must not hide what ended the run
                log.exception("the report could not be written")
                if status == "complete":
                    raise


def record_failure(path: Path, config_text: str, error: Exception) -> None:
    """Leave a trace of a run that could not even be built, where none was written yet."""
    if not (path / "config.yaml").exists():
        write_text(path / "config.yaml", config_text)
        RunFolder(path).write_summary(
            {"name": path.name, "status": f"failed: {in_words(error)}", "metrics": {}}
        )


def summarise(experiment: Experiment, folder: RunFolder, status: str, seconds: float) -> dict[str, Any]:
    """Return summary.json: the means over attacked rounds and clients, and what they stand on."""
    rows = folder.scores()
    lines = metric_lines(rows)
    metrics = {line.name: line.mean for line in lines}
    if history := folder.history():
        metrics |= {"accuracy": history[-1].accuracy, "loss": history[-1].loss}
        target = experiment.federation.target_accuracy or math.inf
        if reached := [result for result in history if result.accuracy >= target]:
            metrics |= {"rounds_to_target": reached[0].round, "seconds_to_target": reached[0].seconds}
    metrics |= verdict_rates(folder.verdicts(), folder.cheats())
    if (epsilon := _epsilon(experiment, folder)) is not None:
        metrics["epsilon"] = epsilon
    return {
        "name": experiment.name,
        "status": status,
        "attack": experiment.attack_name,
        "metrics": {name: value if math.isfinite(value) else None for name, value in metrics.items()},
        "blind": {line.name: line.blind for line in lines if line.blind is not None},
        "observations": folder.count_observations() or len(folder.guessed()),
        "faults": sum(row.metric == FAULT for row in rows),
        "seconds": round(seconds, 3),
        "rounds": experiment.federation.rounds,
        "clients": experiment.federation.clients,
        "seed": experiment.seed,
        "versions": {"fedsim": __version__, "python": platform.python_version()}
        | {name: version(name) for name in LIBRARIES},
    }


def verdict_rates(verdicts: Sequence[Verdict], cheats: Mapping[int, str]) -> dict[str, float]:
    """Return how many cheats an audit caught, how many honest clients it wronged, and at what cost."""
    caught = [float(not verdict.accepted) for verdict in verdicts if cheats.get(verdict.client)]
    wronged = [float(not verdict.accepted) for verdict in verdicts if not cheats.get(verdict.client)]
    steps = sum(verdict.steps for verdict in verdicts)
    rates = {"detection": fmean(caught)} if caught else {}
    rates |= {"false_rejects": fmean(wronged)} if wronged else {}
    rates |= {"recomputed": sum(verdict.recomputed for verdict in verdicts) / steps} if steps else {}
    return rates


def _epsilon(experiment: Experiment, folder: RunFolder) -> float | None:
    """Return the differential privacy that the run promises the client with the fewest images."""
    rules, sizes = experiment.federation, folder.share_sizes()
    if not sizes:
        return None
    rate, steps = min(1.0, rules.batch_size / min(sizes)), rules.rounds * rules.local_steps
    promised = [defense.epsilon(sample_rate=rate, steps=steps) for defense in experiment.defenses]
    return min((epsilon for epsilon in promised if epsilon is not None), default=None)


def _new_folder(experiment: Experiment, path: Path) -> RunFolder:
    """Make the run folder; an earlier run's is never written over."""
    if (path / "config.yaml").exists():
        raise FedsimError(f"{path} already holds a run. Remedy: another hydra.run.dir, or remove the folder.")
    write_text(path / "config.yaml", experiment.config_text)
    return RunFolder(path)
