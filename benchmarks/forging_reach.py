"""How far exact forgeries reach, and why no further: unread pixels, whole grey levels, other networks.

python benchmarks/forging_reach.py [invisible] [lattice] [balance] [networks] [--seed 500]
python benchmarks/forging_reach.py invisible --seed 500 --batches 2 --stages 0 300 --network "MNIST, LeNet-5"
(an hour; balance and networks take minutes)
"""

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from scipy.optimize import linprog
from torch import Tensor, nn

from fedsim.attacks.integrity.forging.box import room
from fedsim.attacks.integrity.forging.first_layer import basis, first_layer
from fedsim.attacks.integrity.forging.invisible import Invisible
from fedsim.attacks.integrity.forging.lattice import Lattice
from fedsim.attacks.integrity.forging.margins import Margins, margins, read_units, stuck
from fedsim.attacks.integrity.forging.unread import reading, same_step
from fedsim.core.challenges import Challenge
from fedsim.core.errors import FedsimError
from fedsim.core.types import Task
from fedsim.data.cifar10_small import cifar10_small
from fedsim.data.images import Dataset
from fedsim.data.mnist_small import mnist_small
from fedsim.integrity.trial import RATE, judged, trial, update_error
from fedsim.models.convnet import convnet
from fedsim.models.lenet5 import lenet5
from fedsim.models.mlp import mlp
from fedsim.models.resnet_cifar import resnet_cifar
from fedsim.models.softmax import softmax
from fedsim.models.vggmini import vggmini

Make = Callable[[Task], nn.Module]


def hidden(task: Task) -> nn.Module:
    return mlp(task, depth=2, width=32)


def padded(task: Task) -> nn.Module:
    return lenet5(task, padding=2)


def unread_pixels(seed: int, batches: int, stages: Sequence[int], network: str) -> None:
    """Images moved to the bit, images proven stuck, how far, and how many other images there are at least."""
    print("invisible, b=100, learning rate .01; grey levels rms: median, most; bits: median, range")
    cases: Sequence[tuple[str, Callable[[], Dataset], Make]] = (
        ("MNIST, LeNet-5", mnist_small, lenet5),
        ("CIFAR-10, LeNet-5", cifar10_small, lenet5),
        ("MNIST, LeNet-5 of 61,706 parameters", mnist_small, padded),
    )
    for name, data, make in (case for case in cases if network in ("", case[0])):
        for steps in stages:
            moved = proven = 0
            for number in range(batches):
                asked = trial(data(), make, 100, seed=seed + number, steps=steps)
                found = _tell_moved(f"{name}, step {steps}, seed {seed + number}", asked)
                moved, proven = moved + found[0], proven + found[1]
            total = 100 * batches
            print(
                f"{name}, step {steps}: of {total} images {moved} moved, {proven} proven stuck, "
                f"{total - moved - proven} undecided",
                flush=True,
            )


def _tell_moved(name: str, asked: Challenge) -> tuple[int, int]:
    started, images, labels = time.process_time(), asked.batch.images, asked.batch.labels
    try:
        claimed = Invisible().forge(asked).images
    except FedsimError:
        claimed = images
    seconds = time.process_time() - started
    gaps = (claimed - images).flatten(1).square().mean(dim=1).sqrt() * 255
    still = (gaps == 0).nonzero().flatten().tolist()
    own = margins(asked.model, asked.batch)
    assert own is not None
    proven = sum(stuck(own, place, images[place]) for place in still)
    free = reading(asked.model, asked.batch).free.flatten(1).sum(dim=1)
    bits = torch.tensor([least_bits(own, place, images[place]) for place in range(len(labels))])
    same = same_step(asked.model, asked.batch, claimed, RATE)
    print(
        f"  {name}: {len(gaps) - len(still)} of {len(gaps)} moved, {proven} proven stuck, "
        f"{'the same' if same else 'OTHER'} weights, {float(gaps.median()):.1f}, {float(gaps.max()):.1f}; "
        f"{int(free.min())} to {int(free.max())} pixels unread, "
        f"{float(bits.median()):.0f}, {float(bits.min()):.0f} to {float(bits.max()):.0f} bits; "
        f"{seconds:.0f} CPU s",
        flush=True,
    )
    return len(gaps) - len(still), proven


def least_bits(own: Margins, place: int, image: Tensor) -> float:
    """Logarithm of a number of images that no unit tells apart: each pixel alone, whatever the others do.

    A unit's room is shared out in equal parts among the pixels that raise it.
    """
    levels = torch.round(image.double().flatten() * 255)
    white = torch.cat([255 - levels, torch.zeros(1).double()])
    fixed = own.pixels[own.held[0][place].any(dim=0)]
    white[fixed.flatten()] = 0
    raising = own.weights.clamp(min=0)[:, None] * (white[own.pixels] > 0)  # (channels, places, weights)
    share = own.room[place] / raising.sum(dim=2).clamp(min=1e-300)
    for channel in range(len(raising)):
        limits = torch.where(raising[channel] > 0, share[channel][:, None], torch.inf)
        white.scatter_reduce_(0, own.pixels.flatten() % len(white), limits.flatten(), "amin")
    return float(torch.log2(1 + torch.floor(white[:-1] * (1 - 1e-4))).sum())


def lattice(seed: int) -> None:
    """Whole grey levels, all examples replaced, or a fifth of them with a hidden layer."""
    cases: Sequence[tuple[str, Dataset, Make, int, int]] = (
        ("MNIST, softmax regression, b=64", mnist_small(), softmax, 64, 64),
        ("CIFAR-10, softmax regression, b=100", cifar10_small(), softmax, 100, 100),
        ("MNIST, softmax regression, b=20", mnist_small(), softmax, 20, 20),
        ("MNIST, 32 hidden units, b=100", mnist_small(), hidden, 100, 20),
        ("MNIST, softmax regression, b=100", mnist_small(), softmax, 100, 100),
    )
    for name, data, make, size, unwanted in cases:
        found, once, accepted, seconds = list[float](), 0, 0, list[float]()
        for number in range(10):
            asked = trial(data, make, size, unwanted=unwanted, seed=seed + number, steps=10 * number)
            started = time.process_time()
            try:
                claimed = Lattice(tries=1).forge(asked)
            except FedsimError:
                continue
            seconds.append(time.process_time() - started)
            verdict = judged(asked, claimed)
            found.append(update_error(asked.model, asked.batch, claimed))
            once, accepted = once + verdict.once, accepted + verdict.accepted
        errors = f"{min(found):.1e} to {max(found):.1e} in float64" if found else ""
        spent = f", {sum(seconds) / len(seconds):.0f} CPU s a batch" if seconds else ""
        print(
            f"whole grey levels, {name}, {unwanted} replaced: {accepted} of 10 accepted, {once} at 1x, "
            f"{10 - len(found)} gave up; {errors}{spent}",
            flush=True,
        )


def balance(seed: int) -> None:
    """Where `lattice` ends: how many strengths must be negative, and which pixels then have any room."""
    cases = (("softmax, b=20", softmax, 20, 20), ("32 hidden units, b=100", hidden, 100, 20))
    for name, make, size, unwanted in cases:
        for number in range(10):
            asked = trial(mnist_small(), make, size, unwanted=unwanted, seed=seed + number, steps=10 * number)
            layer = first_layer(asked.model, asked.batch)
            errors = (layer.errors @ basis(layer.errors.T)).numpy()
            levels = torch.round(asked.batch.images.double().flatten(1) * 255).numpy()
            strengths = fewest_negative(errors, unwanted, (levels > 60).sum(axis=1))
            low, high = room(levels, strengths, 255.0)
            classes = len(asked.batch.labels.unique())
            print(
                f"  {name}, seed {seed + number}, {classes} classes: "
                f"{int((strengths < 0).sum())} strengths below 0, "
                f"{int(((high >= 1) | (low <= -1)).sum())} pixels with room for a level, "
                f"{basis(layer.free_weight).shape[1]} equations for them",
                flush=True,
            )


def fewest_negative(errors: np.ndarray, unwanted: int, ink: np.ndarray) -> np.ndarray:
    """Strengths that cancel the errors, at least 1 for unwanted examples, as little below 0 as can be."""
    number, equations = errors.shape
    found = linprog(
        np.concatenate([np.zeros(number), 1 / np.maximum(ink, 1)]),  # rather of images with much ink
        A_eq=np.hstack([errors.T, -errors.T]),
        b_eq=np.zeros(equations),
        bounds=[(float(place < unwanted), 32) for place in range(number)] + [(0, 64)] * number,
    )
    strengths = found.x[:number] - found.x[number:]
    return np.where(np.abs(strengths) < 1e-6, 0.0, strengths)


def networks(seed: int) -> None:
    """Networks without a pooling behind the first convolution: which directions are left to an image?"""
    data = cifar10_small()
    cases: Sequence[tuple[str, Make]] = (
        ("VGGmini", vggmini),
        ("ConvNet", lambda task: convnet(task, width=16)),
        ("ResNet-20", resnet_cifar),
        ("LeNet-5", lenet5),
    )
    for name, make in cases:
        for steps in (0, 10):
            asked = trial(data, make, 20, seed=seed, steps=steps)
            own = margins(asked.model, asked.batch)
            assert own is not None
            free = reading(asked.model, asked.batch).free.flatten(1).sum(dim=1)
            seen = read_units(own, 0, 3072)
            sizes = np.linalg.eigvalsh((seen.T @ seen).toarray())
            equations, rank = seen.shape[0], int((sizes > 1e-10 * sizes.max()).sum())
            print(
                f"  {name}, step {steps}, seed {seed}: {int(free.min())} to {int(free.max())} pixels "
                f"unread; first image: {equations:,} units are read, of rank {rank} on 3072 pixels",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*")
    parser.add_argument("--seed", type=int, default=500)
    parser.add_argument("--batches", type=int, default=5, help="of invisible, at each stage")
    parser.add_argument("--stages", type=int, nargs="+", default=[0, 300, 1500], help="likewise: steps done")
    parser.add_argument("--network", default="", help="likewise: one of its networks alone")
    given = parser.parse_args()
    unread = partial(unread_pixels, batches=given.batches, stages=given.stages, network=given.network)
    parts: dict[str, Callable[[int], None]] = {
        "invisible": unread,
        "lattice": lattice,
        "balance": balance,
        "networks": networks,
    }
    for part in given.parts or parts:
        parts[part](given.seed)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
