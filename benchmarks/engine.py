"""What the federation costs beyond its gradients: the inline engine against a bare torch loop.

100 clients, 3 rounds of FedSGD, LeNet-5 on cifar10_small, batches of 24, every observation and its truth
saved. Both sides compute the same 300 gradients, in one thread; CPU seconds, best of five in turns.
Prints the ratio and the peak memory. Bar: ratio <= 1.6, memory < 1 GB.
"""

import dataclasses
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from fedsim import build
from fedsim.client import ClientSetup, batch_gradient, load_weights
from fedsim.data.batches import batch_indices
from fedsim.experiment import play
from fedsim.runfolder import RunFolder

OVERRIDES = (
    "data=cifar10_small",
    "model=lenet5",
    "federation.clients=100",
    "federation.rounds=3",
    "federation.evaluate_every=0",
    "name=benchmark",
)
REPETITIONS = 5
RUNS = Path(__file__).resolve().parent.parent / "runs"  # where a user's run folders lie


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
    experiment = build.experiment(build.compose(OVERRIDES))
    bare, inline = [], []
    with tempfile.TemporaryDirectory(dir=RUNS) as folder:  # removed outside the clock
        setup = experiment.prepare_clients(Path(folder))()
        # Data and partition are given to both sides: this measures rounds.
        experiment = dataclasses.replace(experiment, prepare_clients=lambda folder: lambda: setup)
        for repetition in range(REPETITIONS + 1):  # in turns, so that both meet the machine's moods
            run = RunFolder(Path(folder) / str(repetition))
            bare.append(cpu_seconds(lambda: bare_loop(setup, 3)))
            inline.append(cpu_seconds(lambda run=run: play(experiment, run)))
    ours, theirs = min(inline[1:]), min(bare[1:])  # the first turn warms up
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"bare loop      {theirs:6.2f} CPU s  ({1000 * theirs / 300:.2f} ms a gradient)")
    print(f"inline engine  {ours:6.2f} CPU s  ({1000 * ours / 300:.2f} ms a client)")
    print(f"ratio          {ours / theirs:6.2f}      (bar 1.6)")
    print(f"peak memory    {memory:6.2f} GB     (bar 1)")


if __name__ == "__main__":
    main()
