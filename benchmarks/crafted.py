"""Shares of images that chosen weights recover, beside published figures. Who notices: detectors.py.

python benchmarks/crafted.py bars DATA          # DATA: a folder with mnist.npz and cifar10.npz
python benchmarks/crafted.py bars DATA --batches 1 --seed 900
python benchmarks/crafted.py residual           # images of one class out of 256, by a ResNet-18
"""

import argparse
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
from fedsim.attacks.privacy.crafted.residual_fishing import ResidualFishing
from fedsim.attacks.privacy.crafted.soliton import Soliton
from fedsim.attacks.privacy.crafted.trap_weights import TrapWeights
from fedsim.core.errors import FedsimError
from fedsim.core.randomness import generator
from fedsim.core.training import batch_gradient, load_weights, weights_of
from fedsim.core.types import Observation, PublicImages, Reconstruction, Weights
from fedsim.data.images import Dataset

NEAR = 0.01  # relative error of a recovered image
UNITS = 1000


def npz_sets(folder: Path) -> dict[str, Dataset]:
    """Read the data sets of a folder."""
    return {name: fedsim.dataset("npz", path=str(folder / f"{name}.npz")) for name in ("mnist", "cifar10")}


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


def residual(batches: int, first: int) -> None:
    """Print what is read of the images of one class, beside the mean public image in its place."""
    data, target = fedsim.dataset("cifar10_small"), 3
    print("| seed | images of the class | found | certified | false | PSNR, dB | mean image | CPU s |")
    print("|---|---|---|---|---|---|---|---|")
    for seed in range(first, first + batches):
        started, model = time.process_time(), fedsim.model("resnet18", task=data.task).eval()
        images, labels = batch(data, 256, seed)
        attack = ResidualFishing(target=target, seed=seed, public=public(data, seed))
        guess = one_round(attack, model, data, images, labels)
        number = int((labels == target).sum())
        if guess is None or guess.images is None or guess.certified is None:
            print(f"| {seed} | {number} | 0 | 0 | 0 | - | - | - |")
            continue
        errors, places = (guess.images[:, None] - images).flatten(2).square().mean(dim=2).min(dim=1)
        blind = (attack.public.images.mean(dim=0) - images[places]).flatten(1).square().mean(dim=1)
        wrong = int((guess.certified & ((errors > 1e-6) | (labels[places] != target))).sum())
        seen, baseline = -10 * errors.log10(), -10 * blind.log10()
        print(
            f"| {seed} | {number} | {len(places)} | {int(guess.certified.sum())} | {wrong} | "
            f"{float(seen.min()):.0f} to {float(seen.max()):.0f} | {float(baseline.mean()):.1f} | "
            f"{time.process_time() - started:.0f} |",
            flush=True,
        )


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", choices=("bars", "residual"))
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--batches", type=int, default=5)
    parser.add_argument("--seed", type=int, default=900)
    parser.add_argument("--only", default="", help="rows whose name holds this")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.table == "residual":
        residual(chosen.batches, chosen.seed)
        return
    if chosen.data is None:
        parser.error("bars needs the folder DATA")
    bars(npz_sets(chosen.data), chosen.batches, chosen.seed, chosen.only)


if __name__ == "__main__":
    main()
