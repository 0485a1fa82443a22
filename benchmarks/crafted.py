"""Shares of images that chosen weights recover, beside published figures; detectors; false alarms.

python benchmarks/crafted.py bars DATA          # DATA: a folder with mnist.npz and cifar10.npz
python benchmarks/crafted.py bars DATA --batches 1 --seed 900
python benchmarks/crafted.py stealth DATA       # attacks x detectors, at the default limits
python benchmarks/crafted.py honest DATA        # the signs that detectors look at, over honest rounds
"""

import argparse
import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import torch
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
from fedsim.core.types import Observation, PublicImages, Reconstruction, Weights
from fedsim.data.images import Dataset
from fedsim.defenses.privacy.inspect_gradient import InspectGradient, gradient_signs
from fedsim.defenses.privacy.inspect_weights import InspectWeights, weight_signs

NEAR = 0.01  # relative error of a recovered image
UNITS = 1000
ROUNDS = 100  # of an honest training


def batch(data: Dataset, size: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw a private batch."""
    places = torch.randperm(len(data.train.labels), generator=generator(seed, "batch"))[:size]
    return data.train.batch(places), data.train.labels[places]


def public(data: Dataset, seed: int) -> PublicImages:
    """Draw public images from the test split."""
    places = torch.randperm(len(data.test.labels), generator=generator(seed, "public"))[:2000]
    return PublicImages(images=data.test.batch(places), labels=data.test.labels[places])


def shares(guess: Reconstruction | None, images: torch.Tensor) -> tuple[float, float, int]:
    """Return the share recovered by the truth, the share certified, and how many certificates are false."""
    if guess is None or guess.images is None:
        return 0.0, 0.0, 0
    true = images.flatten(1).double()
    gaps = torch.cdist(guess.images.flatten(1).double(), true) / true.norm(dim=1)
    hits = (gaps.amin(dim=0) <= NEAR).double().mean()
    sure = torch.zeros(len(gaps), dtype=torch.bool) if guess.certified is None else guess.certified
    return float(hits), int(sure.sum()) / len(images), int((gaps[sure].amin(dim=1) > NEAR).sum())


def one_round(
    attack: Crafted, model: nn.Module, data: Dataset, images: torch.Tensor, labels: torch.Tensor
) -> Reconstruction | None:
    """Send crafted weights to one client, and attack its answer."""
    sent = attack.craft(model, data.task, 1, weights_of(model))
    load_weights(model, sent)
    gradient, _ = batch_gradient(model, images, labels)
    seen = Observation(
        round=1, client=0, sent=sent, received=gradient, kind="gradient", num_examples=len(labels)
    )
    try:
        return attack.run(model, data.task, [seen])
    except FedsimError as error:
        print(f"    gave up: {error}")
        return None


def summed_round(
    attack: Loki, model: nn.Module, data: Dataset, images: torch.Tensor, labels: torch.Tensor
) -> Reconstruction:
    """The same under secure aggregation: the mean over all clients' equal batches."""
    honest = weights_of(model)
    broadcast = attack.craft(model, data.task, 1, honest)
    each, total = len(labels) // attack.clients, dict[str, torch.Tensor]()
    for client in range(attack.clients):
        load_weights(model, attack.tailor(model, data.task, 1, client, broadcast))
        own = slice(client * each, (client + 1) * each)
        gradient, _ = batch_gradient(model, images[own], labels[own])
        total = {name: tensor + total.get(name, 0) for name, tensor in gradient.items()}
    received: Weights = {name: tensor / attack.clients for name, tensor in total.items()}
    load_weights(model, broadcast)
    seen = Observation(
        round=1,
        client=-1,
        clients=tuple(range(attack.clients)),
        sent=broadcast,
        received=received,
        kind="gradient",
        num_examples=len(labels),
    )
    return attack.run(model, data.task, [seen])


def bars(sets: dict[str, Dataset], batches: int, first: int, only: str) -> None:
    """Print the share recovered of each setting, beside what was published."""
    Row = tuple[str, str, int, int, bool, Callable[[], Crafted], str]
    rows: list[Row] = [
        ("imprint", "cifar10", 64, UNITS, True, Imprint, "60 of 64 (.94)"),
        ("imprint, 3 directions", "cifar10", 300, UNITS, True, lambda: Imprint(directions=3, levels=1), "-"),
        ("trap_weights", "mnist", 100, UNITS, True, TrapWeights, "> .50 (ImageNet)"),
        ("trap_weights", "cifar10", 64, UNITS, True, TrapWeights, "> .50 of 100 (ImageNet)"),
        ("soliton", "mnist", 512, UNITS, True, lambda: Soliton(examples=512), ".978"),
        ("soliton", "cifar10", 300, UNITS, True, lambda: Soliton(examples=300), ".997"),
        ("soliton, no data", "cifar10", 300, UNITS, False, lambda: Soliton(examples=300), ".980 (ImageNet)"),
        ("soliton, no data", "mnist", 300, UNITS, False, lambda: Soliton(examples=300), "-"),
        ("quiet", "mnist", 64, UNITS, True, Quiet, "-"),
        ("quiet", "cifar10", 64, UNITS, True, Quiet, "-"),
        ("fishing (of class 3)", "mnist", 2000, UNITS, True, lambda: Fishing(target=3), "one image"),
        ("loki, 100 clients x 8", "mnist", 800, 3200, True, lambda: Loki(clients=100), ".76 to .86"),
    ]
    print("| attack | data | images | units | recovered | certified | false | published | CPU s a batch |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, place, size, units, informed, made, published in rows:
        if only not in f"{name} {place}":
            continue
        data, found, spent = sets[place], list[tuple[float, float, int]](), list[float]()
        for seed in range(first, first + batches):
            images, labels = batch(data, size, seed)
            attack = made()
            attack.seed, attack.public = seed, public(data, seed) if informed else None
            model = fedsim.model("mlp", task=data.task, depth=2, width=units)
            started = time.process_time()
            if isinstance(attack, Loki):
                guess: Reconstruction | None = summed_round(attack, model, data, images, labels)
            else:
                guess = one_round(attack, model, data, images, labels)
            spent.append(time.process_time() - started)
            wanted = images[labels == attack.target] if isinstance(attack, Fishing) else images
            found.append(shares(guess, wanted))
        recovered = [hit for hit, _, _ in found]
        sure = sum(certified for _, certified, _ in found) / len(found)
        print(
            f"| {name} | {place} | {size} | {units} | {sum(recovered) / len(found):.4f} "
            f"({min(recovered):.3f} to {max(recovered):.3f}) | {sure:.3f} | {sum(f for *_, f in found)} "
            f"| {published} | {sum(spent) / len(spent):.1f} |",
            flush=True,
        )


def stealth(sets: dict[str, Dataset], batches: int, first: int, only: str) -> None:
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


def honest(sets: dict[str, Dataset], batches: int, first: int, only: str) -> None:
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


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", choices=("bars", "stealth", "honest"))
    parser.add_argument("data", type=Path)
    parser.add_argument("--batches", type=int, default=5)
    parser.add_argument("--seed", type=int, default=900)
    parser.add_argument("--only", default="", help="rows whose name holds this")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    sets = {
        name: fedsim.dataset("npz", path=str(chosen.data / f"{name}.npz")) for name in ("mnist", "cifar10")
    }
    tables = {"bars": bars, "stealth": stealth, "honest": honest}
    tables[chosen.table](sets, chosen.batches, chosen.seed, chosen.only)


if __name__ == "__main__":
    main()
