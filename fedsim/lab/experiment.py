"""An experiment from first round to report: play, attack, score, write."""

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

from fedsim import __version__
from fedsim.core.errors import FedsimError, in_words
from fedsim.core.federation import Federation
from fedsim.core.interfaces import Attack, Audit, Defense, Metric
from fedsim.core.types import Task, Verdict
from fedsim.data.images import Images
from fedsim.flower.client import ClientSetup, client_app
from fedsim.flower.engines.engine import Apps, Engine
from fedsim.flower.server import ServerSetup, server_app
from fedsim.flower.states import ClientStates
from fedsim.lab.assess import FAULT, GaveUp, assess, fault_row
from fedsim.storage.files import make_private
from fedsim.storage.logs import logged
from fedsim.storage.runfolder import COMPLETE, GAVE_UP, INTERRUPTED, RUNNING, RunFolder, metric_lines

log = logging.getLogger(__name__)
SCORED = "scored"  # in a summary: all that is left to do is to remove what is not to be kept
LIBRARIES = ("torch", "torchvision", "flwr", "numpy", "hydra-core")


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
    first_scale: float  # the model's largest weight, before it is trained
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
    attackers: int  # processes that attack at once
    keep: str  # "all", or "scores": private batches, observations and guesses go when they are scored


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
    folder = _new_folder(experiment, path, source)
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
        first_scale=experiment.first_scale,
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
    finally:  # a run that ends here still says in scores.csv which clients failed
        folder.write_scores([fault_row(fault, experiment.attack_name) for fault in folder.faults()])


@contextmanager
def recorded(experiment: Experiment, folder: RunFolder) -> Iterator[None]:
    """Log to the run folder, and write report and summary however the block ends.

    The run is "running" from the first write on and "complete" by the last: whoever dies leaves the truth.
    """
    with folder.claimed(), logged(folder.path):
        started, status = time.perf_counter(), RUNNING
        folder.write_summary({"name": experiment.name, "status": RUNNING, "metrics": {}})
        torch.set_num_threads(experiment.threads)
        try:
            yield
            folder.seal_tables()
            status = COMPLETE
        except GaveUp as error:
            status = f"{GAVE_UP}: {error}"
            log.error("%s", error)
            raise
        except Exception as error:
            status = f"failed: {in_words(error)}"
            log.error("%s", error)
            log.debug("%s", traceback.format_exc())
            raise
        except BaseException:  # Ctrl-C, or a signal that somebody made a SystemExit
            status = INTERRUPTED
            raise
        finally:
            summary = summarise(experiment, folder, status, time.perf_counter() - started)
            try:
                finish(folder, summary, experiment.keep)
            except Exception as error:  # must not hide what ended the run
                log.exception("the end could not be written")
                if status == COMPLETE:
                    folder.write_summary(summary | {"status": f"failed: the report: {in_words(error)}"})
                    raise
                folder.write_summary(summary)


def finish(folder: RunFolder, summary: dict[str, Any], keep: str) -> None:
    """Remove what is not to be kept, write the report, and at last the summary."""
    from fedsim.report.run import write_report

    if keep == "scores" and summary["status"] == COMPLETE:
        folder.write_summary(summary | {"status": RUNNING, SCORED: True})  # what is scored may go
        folder.forget_private()
    write_report(folder, summary)
    folder.write_summary(summary)


def record_failure(path: Path, config_text: str, error: Exception) -> None:
    """Leave a trace of a run that could not even be built, where none was written yet."""
    folder = RunFolder(path)
    if not folder.storage.has("config.yaml"):
        folder.storage.write_text("config.yaml", config_text)
        folder.write_summary({"name": path.name, "status": f"failed: {in_words(error)}", "metrics": {}})


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


def _new_folder(experiment: Experiment, path: Path, source: RunFolder | None = None) -> RunFolder:
    """Make the run folder, of a replay with its source; an earlier run's is never written over."""
    if (path / "config.yaml").exists():
        raise FedsimError(f"{path} already holds a run. Remedy: another hydra.run.dir, or remove the folder.")
    folder = RunFolder(path)
    make_private(path)
    if source is not None:  # first: without it, a resumed replay would be taken for a run and trained
        folder.keep_source(source)
    folder.storage.write_text("config.yaml", experiment.config_text)
    return folder
