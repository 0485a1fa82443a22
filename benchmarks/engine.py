"""What the federation costs beyond its gradients: the inline engine against a bare torch loop.

100 clients, 3 rounds of FedSGD, LeNet-5 on cifar10_small, batches of 24, every observation and its truth
saved. Both sides compute the same 300 gradients, in one thread; CPU seconds, best of five in turns.
Prints the ratios and the peak memory. Bar: ratio <= 1.6, memory < 1 GB. A disk that has lately seen
many files deleted makes new ones slowly (ext4 avoids their inodes), so the ratio is also taken in memory.
"""

import dataclasses
import resource
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import torch

from fedsim.config import build
from fedsim.config.compose import compose
from fedsim.core.training import batch_gradient, load_weights
from fedsim.data.batches import batch_indices
from fedsim.flower.setups import ClientSetup
from fedsim.lab.experiment import play
from fedsim.storage.runfolder import RunFolder

OVERRIDES = (
    "data=cifar10_small",
    "model=lenet5",
    "federation.clients=100",
    "federation.rounds=3",
    "federation.evaluate_every=0",
    "name=benchmark",
)
REPETITIONS = 5
DISK = Path(__file__).resolve().parent.parent / "runs"  # where a user's run folders lie
MEMORY = Path("/dev/shm")  # the same without the file system's own cost of making files


def bare_loop(setup: ClientSetup, rounds: int) -> None:
    """Compute the same gradients and the same averaged steps, with nothing around them."""
    weights = {name: p.detach().clone() for name, p in setup.model.named_parameters()}
    for round in range(rounds):
        mean = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
        load_weights(setup.model, weights)
        for client, owned in enumerate(setup.shares):
            indices = batch_indices(
                setup.train.labels,
                owned,
                batch_size=24,
                layout="natural",
                replacement=False,
                seed=setup.seed,
                client=client,
                step=round,
            )
            gradient, _ = batch_gradient(setup.model, setup.train.batch(indices), setup.train.labels[indices])
            for name, tensor in gradient.items():
                mean[name] += tensor / len(setup.shares)
        weights = {name: tensor - 0.1 * mean[name] for name, tensor in weights.items()}


def cpu_seconds(work: Callable[[], None]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def main() -> None:
    torch.set_num_threads(1)
    experiment = build.experiment(compose(OVERRIDES))
    places = {"disk": DISK} | ({"memory": MEMORY} if MEMORY.is_dir() else {})
    seconds: dict[str, list[float]] = {"bare": [], **{name: [] for name in places}}
    with ExitStack() as removed_at_the_end:
        folders = {
            name: Path(removed_at_the_end.enter_context(tempfile.TemporaryDirectory(dir=place)))
            for name, place in places.items()
        }
        setup = experiment.prepare_clients(folders["disk"])()
        # Data and partition are given to both sides: this measures rounds.
        experiment = dataclasses.replace(experiment, prepare_clients=lambda folder: lambda: setup)
        for repetition in range(REPETITIONS + 1):  # in turns, so that all meet the machine's moods
            seconds["bare"].append(cpu_seconds(lambda: bare_loop(setup, 3)))
            for name, folder in folders.items():
                run = RunFolder(folder / str(repetition))
                seconds[name].append(cpu_seconds(lambda run=run: play(experiment, run)))
    best = {name: min(values[1:]) for name, values in seconds.items()}  # the first turn warms up
    print(f"bare loop                     {best['bare']:5.2f} CPU s, {best['bare'] / 0.3:5.2f} ms a gradient")
    for name in places:
        cost = f"{best[name]:5.2f} CPU s, {best[name] / 0.3:5.2f} ms a client"
        print(f"inline, saving to {name:<10}  {cost}: ratio {best[name] / best['bare']:.2f}  [1.6]")
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"peak memory                   {memory:5.2f} GB  [1]")


if __name__ == "__main__":
    main()
