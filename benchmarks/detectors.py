"""Which chosen weights a client notices, at which rate of false alarms.

python benchmarks/detectors.py stealth DATA     # attacks x detectors, at the default limits
python benchmarks/detectors.py honest DATA      # the signs that detectors look at, over honest rounds
python benchmarks/detectors.py calibrated       # limits for 1 % of false alarms, and what they catch
DATA: a folder with mnist.npz and cifar10.npz.
"""

import argparse
import contextlib
from collections.abc import Callable
from pathlib import Path

import torch
from crafted import UNITS, batch, npz_sets, public, shares
from torch import nn

import fedsim
from fedsim.attacks.privacy.crafted.crafted import Crafted
from fedsim.attacks.privacy.crafted.fishing import Fishing
from fedsim.attacks.privacy.crafted.imprint import Imprint
from fedsim.attacks.privacy.crafted.loki import Loki
from fedsim.attacks.privacy.crafted.quiet import Quiet
from fedsim.attacks.privacy.crafted.soliton import Soliton
from fedsim.attacks.privacy.crafted.trap_weights import TrapWeights
from fedsim.core.errors import FedsimError, Refused
from fedsim.core.interfaces import LocalStep
from fedsim.core.randomness import generator
from fedsim.core.training import batch_gradient, load_weights, weights_of
from fedsim.core.types import Observation, Weights
from fedsim.data.images import Dataset
from fedsim.defenses.privacy.inspect_gradient import InspectGradient, gradient_signs
from fedsim.defenses.privacy.inspect_weights import InspectWeights, weight_signs
from fedsim.defenses.privacy.limits import calibrated

ROUNDS = 100  # of an honest training


def stealth(sets: dict[str, Dataset], batches: int, first: int) -> None:
    """Print how often a client notices each attack in the first round, and what the attack recovers."""
    data = sets["mnist"]
    made: dict[str, Callable[[], Crafted]] = {
        "imprint": Imprint,
        "trap_weights": TrapWeights,
        "soliton": lambda: Soliton(examples=64),
        "fishing": Fishing,
        "loki": lambda: Loki(clients=10),
        "quiet": Quiet,
    }
    print("| attack | inspect_weights | inspect_gradient | recovered of 64 |")
    print("|---|---|---|---|")
    for name, maker in made.items():
        noticed, recovered = {"weights": 0, "gradient": 0}, 0.0
        for seed in range(first, first + batches):
            images, labels = batch(data, 64, seed)
            attack = maker()
            attack.seed, attack.public = seed, public(data, seed)
            model = fedsim.model("mlp", task=data.task, depth=2, width=UNITS)
            sent = attack.craft(model, data.task, 1, weights_of(model))
            sent = attack.tailor(model, data.task, 1, 0, sent)
            load_weights(model, sent)
            try:
                InspectWeights().on_sent(sent, None, model)
            except Refused:
                noticed["weights"] += 1
            gradient, _ = batch_gradient(model, images, labels)
            step = LocalStep(model=model, images=images, labels=labels)
            try:
                InspectGradient().on_gradient(gradient, step, generator(0))
            except Refused:
                noticed["gradient"] += 1
            seen = Observation(
                round=1, client=0, sent=sent, received=gradient, kind="gradient", num_examples=64
            )
            with contextlib.suppress(FedsimError):
                recovered += shares(attack.run(model, data.task, [seen]), images)[0] / batches
        rates = [f"{count} of {batches}" for count in noticed.values()]
        print(f"| {name} | {rates[0]} | {rates[1]} | {recovered:.3f} |", flush=True)


def honest(sets: dict[str, Dataset], first: int) -> None:
    """Print the largest sign of each kind over honest rounds, and how many of them would be refused."""
    cases = [
        ("mnist", "fcn3", 24, {}),
        ("mnist", "fcn3", 8, {}),
        ("mnist", "mlp", 64, {"depth": 2, "width": 1000}),
        ("mnist", "two_layer", 16, {}),
        ("cifar10", "lenet5", 24, {}),
    ]
    limits = InspectWeights().limits | InspectGradient().limits
    print("| data | model | batch | " + " | ".join(limits) + " | refused |")
    print("|---|---|---|" + "---|" * len(limits) + "---|")
    for place, name, size, settings in cases:
        data = sets[place]
        model = fedsim.model(name, task=data.task, **settings)
        before: Weights | None = None
        largest, refused = dict.fromkeys(limits, 0.0), 0
        for round in range(ROUNDS):
            sent = weights_of(model)
            images, labels = batch(data, size, 1000 * first + round)
            step = LocalStep(model=model, images=images, labels=labels)
            signs = weight_signs(sent, before) | gradient_signs(step)
            largest = {kind: max(largest[kind], signs[kind][0]) for kind in limits}
            refused += any(signs[kind][0] > limits[kind] for kind in limits)
            gradient, _ = batch_gradient(model, images, labels)
            load_weights(model, {key: sent[key] - 0.1 * gradient[key] for key in sent})
            before = sent
        shown = " | ".join(f"{value:.2g}" for value in largest.values())
        print(f"| {place} | {name} | {size} | {shown} | {refused} of {ROUNDS} |", flush=True)


def honest_signs(data: Dataset, network: nn.Module, size: int, seeds: range) -> list[dict[str, float]]:
    """Return the signs of all rounds of honest trainings, one a seed."""
    found, fresh = list[dict[str, float]](), weights_of(network)
    for seed in seeds:
        before: Weights | None = None
        load_weights(network, {name: _redrawn(tensor, seed) for name, tensor in fresh.items()})
        for round in range(ROUNDS):
            sent, (images, labels) = weights_of(network), batch(data, size, 1000 * seed + round)
            step = LocalStep(model=network, images=images, labels=labels)
            signs = weight_signs(sent, before) | gradient_signs(step)
            found.append({kind: value for kind, (value, _) in signs.items()})
            gradient, _ = batch_gradient(network, images, labels)
            load_weights(network, {key: sent[key] - 0.1 * gradient[key] for key in sent})
            before = sent
    return found


def _redrawn(tensor: torch.Tensor, seed: int) -> torch.Tensor:
    """The same numbers in another order: another initialisation."""
    order = torch.randperm(tensor.numel(), generator=generator(seed, "redrawn", tensor.numel()))
    return tensor.flatten()[order].view_as(tensor)


def calibrated_limits(batches: int, first: int) -> None:
    """Print limits for 1 % of false alarms, how often fresh rounds cry wolf, and which attacks are caught."""
    data = fedsim.dataset("mnist_small")
    made: dict[str, Callable[[], Crafted]] = {
        "imprint": Imprint,
        "trap_weights": TrapWeights,
        "soliton": lambda: Soliton(examples=32),
        "fishing": Fishing,
        "loki": lambda: Loki(clients=2),
        "quiet": Quiet,
    }
    width, size = 400, 32
    network = fedsim.model("mlp", task=data.task, depth=2, width=width)
    known = honest_signs(data, network, size, range(first, first + 6))
    fresh = honest_signs(data, network, size, range(first + 6, first + 11))
    for name, kind in (("inspect_weights", InspectWeights), ("inspect_gradient", InspectGradient)):
        kinds = kind().limits
        limits = calibrated([{sign: signs[sign] for sign in kinds} for signs in known])
        wrong = sum(any(signs[sign] > limits[sign] for sign in kinds) for signs in fresh)
        shown = ", ".join(f"{sign} {value:.3g}" for sign, value in limits.items())
        print(f"\n{name}: {shown}; false alarms {wrong} of {len(fresh)} fresh rounds", flush=True)
        for attack_name, maker in made.items():
            caught = 0
            for seed in range(first, first + batches):
                attack, (images, labels) = maker(), batch(data, size, seed)
                attack.seed, attack.public = seed, public(data, seed)
                sent = attack.craft(network, data.task, 1, weights_of(network))
                before, sent = weights_of(network), attack.tailor(network, data.task, 1, 0, sent)
                load_weights(network, sent)
                step = LocalStep(model=network, images=images, labels=labels)
                signs = weight_signs(sent, before) | gradient_signs(step)
                load_weights(network, before)
                caught += any(not signs[sign][0] <= limits[sign] for sign in kinds)
            print(f"  {attack_name}: caught in {caught} of {batches}", flush=True)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", choices=("stealth", "honest", "calibrated"))
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--batches", type=int, default=5)
    parser.add_argument("--seed", type=int, default=900)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.table == "calibrated":
        calibrated_limits(chosen.batches, chosen.seed)
    elif chosen.data is None:
        parser.error(f"{chosen.table} needs the folder DATA")
    elif chosen.table == "stealth":
        stealth(npz_sets(chosen.data), chosen.batches, chosen.seed)
    else:
        honest(npz_sets(chosen.data), chosen.seed)


if __name__ == "__main__":
    main()
