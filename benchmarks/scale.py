"""How cost grows with clients, parameters and rounds: memory, and CPU milliseconds a client and round.

python benchmarks/scale.py (ten minutes). Every setting is a process of its own: rounds of FedSGD, inline
(no other engine), observations and truth saved, then label restoration of each; the report is left out.
Bars: LeNet-5 with 1,000 clients below 1.5 GB, its time a client within 1.2 of that with 100.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COMMON = ("data=synthetic", "data.shape=[1,28,28]", "federation.batch_size=8", "federation.evaluate_every=0")


def measured(*overrides: str) -> dict[str, float]:
    """Run a setting in a process of its own, twice; the faster one counts on a machine that others use."""
    command = [sys.executable, __file__, "--one", *overrides]
    runs = [subprocess.run(command, capture_output=True, text=True, check=True) for _ in range(2)]
    found: list[dict[str, float]] = [json.loads(run.stdout.splitlines()[-1]) for run in runs]
    return min(found, key=lambda figures: figures["play"])


def one(*overrides: str) -> None:
    from fedsim.config import build
    from fedsim.config.compose import compose
    from fedsim.lab.assess import assess
    from fedsim.lab.experiment import play
    from fedsim.storage.runfolder import RunFolder

    few = (
        "federation.clients=3",
        "federation.participation=1.0",
        "federation.rounds=1",
        "data.train_size=50",
    )
    warmed, experiment = (
        build.experiment(compose([*COMMON, *overrides, *more, "metric=[lnacc]", "name=scale"]))
        for more in (few, ())
    )
    rules = experiment.federation
    with tempfile.TemporaryDirectory() as name:
        play(warmed, RunFolder(Path(name) / "warm"))  # imports and torch's first steps, once
        assess(warmed, *[RunFolder(Path(name) / "warm")] * 2)
        folder = RunFolder(Path(name) / "run")
        started = time.process_time()
        play(experiment, folder)
        played = time.process_time() - started
        assess(experiment, folder, folder)
        attacked = time.process_time() - started - played
    replies = rules.rounds * len(rules.participants(0, 1))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    figures = {"play": 1000 * played / replies, "attack": 1000 * attacked / replies, "gigabytes": peak}
    print(json.dumps(figures))


def table(title: str, settings: list[tuple[str, tuple[str, ...]]]) -> None:
    print(f"\n{title}\n{'':>24} {'play ms':>9} {'attack ms':>10} {'GB':>6}   a client and round")
    first: dict[str, float] = {}
    for name, overrides in settings:
        found = measured(*overrides)
        first = first or found
        growth = found["play"] / first["play"]
        row = f"{found['play']:>9.1f} {found['attack']:>10.1f} {found['gigabytes']:>6.2f}"
        print(f"{name:>24} {row}   {growth:.2f} x the first", flush=True)


def clients(number: int, *more: str) -> tuple[str, ...]:
    size = f"data.train_size={max(5000, 10 * number)}"
    return (f"federation.clients={number}", size, "federation.rounds=1", *more)


if __name__ == "__main__":
    if "--one" in sys.argv:
        one(*sys.argv[sys.argv.index("--one") + 1 :])
        sys.exit()
    lenet = ("model=lenet5",)
    table("clients, LeNet-5, one round", [(f"{n}", clients(n, *lenet)) for n in (100, 300, 1000)])
    sampled = ("federation.participation=0.02", "federation.rounds=3", *lenet)
    table("of 10,000 clients 200 a round, 3 rounds", [("10,000", clients(10_000, *sampled))])
    widths = [(f"mlp width {w}", clients(100, "model=mlp", f"model.width={w}")) for w in (100, 300, 1000)]
    table("parameters, 100 clients", widths)
    rounds = [(f"{r} rounds", clients(20, *lenet, f"federation.rounds={r}")) for r in (5, 20, 80)]
    table("rounds, 20 clients", rounds)
