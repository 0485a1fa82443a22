"""An experiment from first round to report: play, attack, score, write."""

import copy
import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import nn

from fedsim.core.errors import REFUSED, FedsimError
from fedsim.core.federation import Federation
from fedsim.core.interfaces import Attack, Audit, Defense, Metric, Tracker
from fedsim.core.randomness import undisturbed
from fedsim.core.types import RoundResult, Task, Verdict
from fedsim.data.images import Images
from fedsim.flower.client import client_app
from fedsim.flower.engines.engine import Apps, Engine
from fedsim.flower.server import server_app
from fedsim.flower.setups import ClientSetup, ServerSetup
from fedsim.flower.states import ClientStates
from fedsim.lab.accounting import budgets
from fedsim.lab.assess import FAULT, assess, fault_row
from fedsim.lab.record import GaveUp, recorded
from fedsim.lab.tracking import Tracked, tracked
from fedsim.metrics.facts import told
from fedsim.storage import ledger
from fedsim.storage.runfolder import RunFolder
from fedsim.storage.scores import metric_lines

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, eq=False)
class Experiment:
    """Everything that a run needs, built from its config."""

    name: str
    seed: int
    config_text: str
    prepare_clients: Callable[[Path], Callable[[], ClientSetup]]
    rebuild: Callable[[], "Experiment"]  # the same, in another process; it travels
    task: Task
    test: Images
    model: nn.Module
    first_scale: float  # the model's largest weight, before it is trained
    federation: Federation
    engine: Engine
    attack: Attack
    attack_name: str
    metrics: tuple[Metric, ...]
    metric_names: tuple[str, ...]  # in the config, in the same order
    defenses: tuple[Defense, ...]
    audit: Audit | None
    malicious: tuple[str, ...]  # how each client cheats; empty: it does not
    added_defenses: int  # of a replay: so many of the last defenses act on what was recorded
    knows_defense: bool  # the threat model: the attacker is told the defenses' settings
    device: str
    threads: int
    tracker: Tracker
    attackers: int  # processes that attack at once
    keep: str  # "all", or "scores": private batches, observations and guesses go when they are scored


def run(experiment: Experiment, path: Path) -> RunFolder:
    """Play the rounds, attack what the server saw, score it, and leave everything in the run folder."""
    folder = RunFolder(path)
    folder.begin("run", experiment.config_text)
    folder.keep_inputs(experiment.task.inputs)
    with tracking(experiment, folder) as told, experimenting(experiment, folder):
        expect_fit(experiment)
        play(experiment, folder, told=told)
        assess(experiment, folder, folder)
    return folder


def replay(experiment: Experiment, source: RunFolder, path: Path) -> RunFolder:
    """Attack an earlier run's observations again, without training, into a run folder of its own."""
    if source.count_observations() == 0:
        raise FedsimError(
            f"{source.path} holds no observations to attack. Remedy: name a run with attacked rounds."
        )
    folder = RunFolder(path)
    folder.begin("replay", experiment.config_text, source)
    folder.keep_inputs(experiment.task.inputs)
    with tracking(experiment, folder), experimenting(experiment, folder):
        expect_fit(experiment)
        folder.adopt(source)
        assess(experiment, source, folder)
    return folder


def expect_fit(experiment: Experiment) -> None:
    """Let an attack give up on a model that it cannot work on, before anything is trained."""
    try:
        with undisturbed():
            experiment.attack.check(copy.deepcopy(experiment.model), experiment.task)
    except FedsimError as error:
        raise GaveUp(f"attack {experiment.attack_name} does not fit the model: {error}") from error


def experimenting(experiment: Experiment, folder: RunFolder) -> AbstractContextManager[None]:
    """Record what happens to an experiment in its run folder."""
    torch.set_num_threads(experiment.threads)
    return recorded(folder, experiment.name, lambda: summarise(experiment, folder), keep=experiment.keep)


def tracking(experiment: Experiment, folder: RunFolder) -> AbstractContextManager[Tracked]:
    """Tell the experiment's tracker of what happens, and at last of what is in the run folder."""
    return tracked(experiment.tracker, folder, experiment.name, experiment.config_text)


def play(experiment: Experiment, folder: RunFolder, done: int = 0, told: Tracked | None = None) -> None:
    """Play the rounds that are left; observations and truth land in the run folder as they come."""

    def keep_round(result: RoundResult) -> None:
        folder.keep_round(result)
        if told is not None:
            told.round(result)

    setup = ServerSetup(
        model=experiment.model,
        task=experiment.task,
        test=experiment.test,
        federation=experiment.federation,
        attack=experiment.attack,
        audit=experiment.audit,
        defenses=experiment.defenses,
        sums_replies=any(defense.sums_replies for defense in experiment.defenses),
        masks=any(defense.masks for defense in experiment.defenses),
        first_scale=experiment.first_scale,
        seed=experiment.seed,
        device=experiment.device,
        threads=experiment.threads,
        keep_observation=folder.keep_observation,
        keep_fault=folder.keep_fault,
        keep_round=keep_round,
        keep_verdict=folder.keep_verdict,
        keep_proof=folder.keep_proof,
        keep_commitment=folder.keep_commitment,
        commitments=ledger.commitments(folder.storage),
        rejections=Counter(verdict.client for verdict in folder.verdicts() if not verdict.accepted),
        keep_weights=folder.keep_weights,
        done=done,
    )
    if any(experiment.malicious):
        folder.keep_malicious(experiment.malicious)
    clients = client_app(
        experiment.prepare_clients(folder.path), folder.keep_truth, ClientStates(folder.storage)
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
        if (ended := folder.last_round()[0]) < experiment.federation.rounds:
            raise FedsimError(
                f"the server ended after round {ended} of {experiment.federation.rounds} without a word. "
                "Remedy: fedsim resume goes on from there."
            )
        if (audit := experiment.audit) is not None:
            key, sign = audit.verifier(experiment.seed)
            if (head := ledger.sign_head(folder.storage, key, sign)) is not None:
                log.info("the ledger of proofs and verdicts ends at %s", head)
    finally:  # a run that ends here still says in scores.csv which clients failed
        folder.write_scores([fault_row(fault, experiment.attack_name) for fault in folder.faults()])


def summarise(experiment: Experiment, folder: RunFolder) -> dict[str, Any]:
    """Return what summary.json says: the means over attacked rounds and clients, and what they stand on."""
    rows = folder.scores()
    lines = metric_lines(rows)
    metrics = {line.name: line.mean for line in lines}
    if (history := folder.history()) and not experiment.added_defenses:  # they took no part in the training
        metrics |= {"accuracy": history[-1].accuracy, "loss": history[-1].loss}
        target = experiment.federation.target_accuracy or math.inf
        if reached := [result for result in history if result.accuracy >= target]:
            metrics |= {"rounds_to_target": reached[0].round, "seconds_to_target": reached[0].seconds}
    metrics |= verdict_rates(folder.verdicts(), folder.malicious())
    metrics |= noticed_rates(experiment, folder)
    metrics |= budgets(experiment, folder)
    return {
        "attack": experiment.attack_name,
        "metrics": {name: value if math.isfinite(value) else None for name, value in metrics.items()},
        "baseline": {line.name: line.baseline for line in lines if line.baseline is not None},
        "chance": {line.name: line.chance for line in lines if line.baseline is not None},
        "observations": folder.count_observations() or len(folder.guessed()),
        "faults": sum(row.metric == FAULT for row in rows),
        "rounds": experiment.federation.rounds,
        "clients": experiment.federation.clients,
        "seed": experiment.seed,
        "legend": told(dict(zip(experiment.metric_names, experiment.metrics, strict=False))),
        **({"prior": experiment.attack.prior} if experiment.attack.prior else {}),
    }


def verdict_rates(verdicts: Sequence[Verdict], malicious: Mapping[int, str]) -> dict[str, float]:
    """Return how many cheats an audit caught, how many honest clients it wronged, and at what cost."""
    caught = [float(not verdict.accepted) for verdict in verdicts if malicious.get(verdict.client)]
    wronged = [float(not verdict.accepted) for verdict in verdicts if not malicious.get(verdict.client)]
    steps = sum(verdict.steps for verdict in verdicts)
    rates = {"detection": fmean(caught)} if caught else {}
    rates |= {"false_rejects": fmean(wronged)} if wronged else {}
    rates |= {"recomputed": sum(verdict.recomputed for verdict in verdicts) / steps} if steps else {}
    rates |= {"audit_bytes": fmean(verdict.bytes + verdict.shown for verdict in verdicts)} if verdicts else {}
    return rates


def noticed_rates(experiment: Experiment, folder: RunFolder) -> dict[str, float]:
    """Return how many of the clients asked looked at what they got, and refused; nothing: nobody looks."""
    if not any(defense.inspects for defense in experiment.defenses):
        return {}
    rules, (last, _) = experiment.federation, folder.last_round()
    rounds = range(1, (last or rules.rounds) + 1)
    asked = sum(len(rules.participants(experiment.seed, round)) for round in rounds)
    refused = sum(fault.reason.startswith(REFUSED) for fault in folder.faults())
    return {"noticed": refused / asked}
