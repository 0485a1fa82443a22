"""What proofs of learning cost, and what forging them costs: ratios of CPU seconds, one thread.

python benchmarks/proof.py (five minutes). LeNet-5 on MNIST; bars: verification of 1,000 steps below 1.6 times
the share of steps done again + 10 % of training, recording at most 10 % at k = S, inversion dearer than
training. Who is accepted: proof_bars.py.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

from fedsim.attacks.integrity.spoofing.inverse_gradient import SOLVERS, invert_step
from fedsim.config import build_central
from fedsim.config.compose import compose
from fedsim.core.randomness import generator
from fedsim.core.training import load_weights, sgd_step, weights_of
from fedsim.data.mnist_small import mnist_small
from fedsim.defenses.integrity.proof.distances import distance
from fedsim.defenses.integrity.proof.initialisation import initial_problem
from fedsim.defenses.integrity.proof.proof_of_learning import ProofOfLearning
from fedsim.integrity.calibrate import costs as recording_costs
from fedsim.integrity.prove import prove
from fedsim.integrity.prove_loop import prove as prove_loop
from fedsim.integrity.training import CentralTraining, batch_at, central_indices, train_centrally
from fedsim.integrity.verify import read_proof, verify_file
from fedsim.integrity.verify_loop import verify_loop
from fedsim.models.lenet5 import lenet5
from fedsim.storage.runfolder import RunFolder


def training(*overrides: str) -> CentralTraining:
    config = compose(["model=lenet5", "audit=proof_of_learning", "name=benchmark", *overrides])
    return build_central.central_training(config)[1]


def verification(steps: int) -> None:
    print(f"\nverification of {steps} steps, batches of 100, Q = 1")
    print(f"{'k':>5} {'R':>8} {'proof MB':>9} {'C_V / C_T':>10} {'of steps':>9} {'bar':>7} {'unseen':>7}")
    for every, random in ((1, 1), (5, 1), (10, 1), (1, None)):
        with tempfile.TemporaryDirectory() as name:
            made = training(f"proof.steps={steps}", "proof.batch_size=100")
            audit = ProofOfLearning(every=every, random=random)
            started = time.process_time()
            model = made.fresh(0)
            for step in range(steps):
                sgd_step(model, batch_at(made, central_indices(made, step)), made.learning_rate)
            trained = time.process_time() - started
            folder = RunFolder(Path(name) / "proof")
            path = prove(made, every, folder, name="benchmark", config_text="")
            started = time.process_time()
            verdict = verify_file(read_proof(path), made, audit, generator(0))
            verified = time.process_time() - started
            assert verdict.accepted, verdict.reason
            share = verdict.recomputed / verdict.steps
            size = path.stat().st_size / 2**20
            ratio, bar = verified / trained, 1.6 * share + 0.1
            print(
                f"{every:>5} {random or 'default':>8} {size:>9.1f} {ratio:>10.3f} {share:>9.3f} {bar:>7.3f} "
                f"{verdict.unseen:>7.3f}"
            )


def recording(steps: int) -> None:
    made = training(f"proof.steps={steps}", "proof.batch_size=100")
    (found,) = (one for one in recording_costs(made, "l2"))
    print(f"\n{found.figure} at {found.case}: {found.value:+.3f} (bar .10)")


def loops(epochs: int) -> None:
    """What a recorder costs a user's own loop, momentum and a schedule, at one checkpoint an epoch."""
    data = mnist_small()
    images = data.train.batch(torch.arange(len(data.train.labels)))
    loader = DataLoader(
        TensorDataset(images, data.train.labels), batch_size=100, shuffle=True, drop_last=True
    )
    steps = epochs * len(loader)

    def train(batches: Callable) -> None:
        model = lenet5(data.task)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        for own, labels in batches(loader, model, optimizer, schedule, steps=steps, every=len(loader)):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(own), labels).backward()
            optimizer.step()
            schedule.step()

    def plain(loader: DataLoader, *parts: object, steps: int, every: int) -> Iterator:
        for _ in range(epochs):
            yield from loader

    spent: dict[str, list[float]] = {"plain": [], "recorded": [], "verified": []}
    for _ in range(3):
        with tempfile.TemporaryDirectory() as name:
            for kind, run in (
                ("plain", lambda: train(plain)),
                ("recorded", lambda: prove_loop(train, into=name)),
                ("verified", lambda: _verified(train, Path(name))),
            ):
                started = time.process_time()
                run()
                spent[kind].append(time.process_time() - started)
    least = {kind: min(seconds) for kind, seconds in spent.items()}
    recorded, verified = least["recorded"] / least["plain"], least["verified"] / least["plain"]
    print(f"\na loop of {steps} steps, k = S = {len(loader)}: recorded / plain {recorded - 1:+.3f} (bar .10)")
    print(f"verified / plain {verified:.3f} (all {epochs} intervals; bar 1.7)", flush=True)


def _verified(train: Callable, folder: Path) -> None:
    sealed = (folder / "training.proof").read_bytes()
    verdict = verify_loop(sealed, train, ProofOfLearning().how, generator(0))
    assert verdict.accepted, verdict.reason


def costs(seed: int, challenges: int) -> None:
    """What proving and verifying costs: 10 steps for each challenge."""
    verification(10 * challenges)
    recording(3 * challenges)
    loops(max(1, challenges // 20))


def inversion(steps: int) -> None:
    """Table III and figures 11 to 15: go back from trained weights, and train forward again."""
    print(f"\ninverse gradient, {steps} steps back from weights after 100 steps")
    print(f"{'solver':>14} {'rate':>6} {'calls a step':>13} {'worst error':>12} {'of d_ref':>9} {'start':>7}")

    for rate in (0.001, 0.01, 0.1):
        made = training("proof.steps=100", "proof.batch_size=100", f"proof.learning_rate={rate}")
        one, other = (train_centrally(made, 100, number=number).checkpoints[-1] for number in (0, 1))
        reference = distance("l2", one, other)
        for solver in SOLVERS:
            model, after, calls, worst = made.fresh(0), one, 0, 0.0
            for step in reversed(range(100 - steps, 100)):
                batch = batch_at(made, central_indices(made, step))
                found = invert_step(model, after, batch, rate, solver=solver)
                load_weights(model, found.weights)
                sgd_step(model, batch, rate)
                worst = max(worst, distance("l2", weights_of(model), after))
                after, calls = found.weights, calls + found.calls
            drawn = [weights_of(made.fresh(number)) for number in range(1, 21)]
            told = "told" if initial_problem(after, drawn.__getitem__) else "passes"
            print(
                f"{solver:>14} {rate:>6g} {calls / steps:>13.1f} {worst:>12.2g} "
                f"{worst / reference:>9.1g} {told:>7}"
            )


if __name__ == "__main__":
    torch.set_num_threads(1)
    costs(0, 100)
    inversion(20)
