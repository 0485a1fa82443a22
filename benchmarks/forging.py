"""Forgeries: the closed form against the pseudo-inverse, whole grey levels, fours, and counted collisions.

python benchmarks/forging.py [closed_form] [lattice] [fours] [collisions] [convolutions]
(ten minutes, and half an hour or more of convolutions)
"""

import copy
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from math import comb

import torch
from torch import Tensor, nn

from fedsim.attacks.integrity.forging.brute_force import colliding, example_gradients
from fedsim.attacks.integrity.forging.first_layer import first_layer
from fedsim.attacks.integrity.forging.gauss_newton import GaussNewton
from fedsim.attacks.integrity.forging.greedy import Greedy
from fedsim.attacks.integrity.forging.lattice import Lattice
from fedsim.attacks.integrity.forging.parallelogram import Parallelogram, fours
from fedsim.attacks.integrity.forging.perturbation import Perturbation, invisible
from fedsim.core.interfaces import Challenge
from fedsim.core.randomness import generator
from fedsim.core.training import Batch, batch_gradient, exact_levels, sgd_step
from fedsim.core.types import Task
from fedsim.data.cifar10_small import cifar10_small
from fedsim.data.images import Dataset
from fedsim.data.mnist_small import mnist_small
from fedsim.data.synthetic import synthetic
from fedsim.data.tiny import tiny
from fedsim.defenses.integrity.proof.domain import domain_of
from fedsim.models.lenet5 import lenet5
from fedsim.models.lenet_zhu import lenet_zhu
from fedsim.models.mlp import mlp
from fedsim.models.softmax import softmax

RATE = 0.01
SEED = 500  # batches that were not looked at while the attacks were made


def challenge(
    data: Dataset, make: Callable[[Task], nn.Module], size: int, seed: int, steps: int = 0
) -> Challenge:
    """A whole batch to forge, at some stage of training."""
    torch.manual_seed(seed)
    model = make(data.task).eval()
    order = torch.randperm(len(data.train.labels), generator=generator(seed, "order"))

    def examples(indices: Tensor) -> Batch:
        return Batch(images=data.train.batch(indices), labels=data.train.labels[indices])

    for step in range(steps):
        chosen = torch.randperm(len(order), generator=generator(seed, "step", step))[:100]
        sgd_step(model, examples(chosen), RATE)
    return Challenge(
        model=model,
        batch=examples(order[:size]),
        unwanted=torch.arange(size),
        task=data.task,
        owned=order[size:],
        examples=examples,
        generator=generator(seed, "forgery"),
    )


def update_error(model: nn.Module, used: Batch, claimed: Batch, levels: bool = True) -> float:
    """Length of the difference of updates in float64, of grey levels as they are."""
    exact, pair = copy.deepcopy(model).double(), []
    for batch in (used, claimed):
        images = torch.round(batch.images * 255) / 255 if levels else batch.images
        pair.append(batch_gradient(exact, exact_levels(images), batch.labels)[0])
    return RATE * sum(float((pair[0][name] - pair[1][name]).square().sum()) for name in pair[0]) ** 0.5


def closed_form() -> None:
    print("closed form against the pseudo-inverse of all equations (CPU s, one thread)")
    for side, size, units in ((5, 12, 10), (7, 16, 10), (9, 24, 10)):
        data = synthetic(shape=(1, side, side), num_classes=4, train_size=200, test_size=8)
        asked = challenge(data, lambda task, units=units: mlp(task, depth=2, width=units), size, SEED)
        layer = first_layer(asked.model, asked.batch)
        noise = torch.randn(side * side, size, dtype=torch.float64, generator=generator(SEED))
        started = time.process_time()
        for _ in range(20):
            found = invisible(noise, layer.weight.T, layer.errors)
        fast = (time.process_time() - started) / 20
        started = time.process_time()
        left = torch.kron(layer.errors.T.contiguous(), torch.eye(side * side, dtype=torch.float64))
        right = torch.kron(torch.eye(size, dtype=torch.float64), layer.weight.contiguous())
        system, flat = torch.cat([left, right]), noise.T.flatten()
        solution = flat - torch.linalg.pinv(system, rtol=1e-12) @ (system @ flat)
        slow = time.process_time() - started
        gap = float((found.T.flatten() - solution).abs().max())
        print(f"  d={side * side}, b={size}: {slow / fast:,.0f} x faster, largest difference {gap:.1e}")
    data = cifar10_small()
    asked = challenge(data, lambda task: mlp(task, depth=3, width=100), 256, SEED)
    started = time.process_time()
    claimed = Perturbation().forge(asked)
    seconds = time.process_time() - started
    error = update_error(asked.model, asked.batch, claimed, levels=False) / RATE
    print(
        f"  d=3072, b=256, 3 layers: {seconds:.2f} s; gradient {error:.1e} away (pixels rounded to float32)"
    )


def lattice() -> None:
    for name, data, strength in (("MNIST", mnist_small(), 16), ("CIFAR-10", cifar10_small(), 8)):
        found, greedy, seconds, valid = [], [], [], 0
        for number in range(10):
            asked = challenge(data, softmax, 100, SEED + number, steps=10 * number)
            started = time.process_time()
            claimed = Lattice(strength=strength, tries=1).forge(asked)
            seconds.append(time.process_time() - started)
            found.append(update_error(asked.model, asked.batch, claimed))
            valid += domain_of(claimed, 100, data.task) == "uint8"
            greedy.append(update_error(asked.model, asked.batch, Greedy().forge(asked)))
        ratio = sum(greedy) / sum(found)
        print(
            f"whole grey levels, {name}, softmax regression, b=100: {valid} of 10 valid, "
            f"{sum(error <= 1e-8 for error in found)} of 10 within 1e-8; "
            f"{min(found):.1e} to {max(found):.1e}, "
            f"greedy / lattice {ratio:.0e}, {sum(seconds) / 10:.0f} CPU s a batch"
        )


def four_images() -> None:
    data = mnist_small()
    for name, make in (("softmax regression", softmax), ("LeNet-5", lenet5)):
        errors = []
        for number in range(3):
            asked = challenge(data, make, 80, SEED + number, steps=20)
            forgery = Parallelogram()
            planned = replace(asked, batch=forgery.compose(asked))
            claimed = forgery.forge(planned)
            for places in fours(planned):
                used = Batch(images=planned.batch.images[places], labels=planned.batch.labels[places])
                other = Batch(images=claimed.images[places], labels=claimed.labels[places])
                errors.append(update_error(planned.model, used, other))
        good = sum(error <= 1e-13 for error in errors)
        print(f"planned fours, {name}: {good} of {len(errors)} within 1e-13, median {sorted(errors)[30]:.1e}")


def collisions() -> None:
    print("all pairs of batches: how many share their gradient with another (softmax regression with bias)")
    for values, sizes in ((2, 5), (3, 4), (4, 3), (5, 2), (6, 2)):
        data = tiny(values=values)
        torch.manual_seed(SEED)
        everything = torch.arange(len(data.train.labels))
        gradients = example_gradients(softmax(data.task), data.train.batch(everything), data.train.labels)
        for size in range(1, sizes + 1):
            started = time.perf_counter()
            found, total = colliding(gradients, size)
            assert total == comb(len(everything), size)
            seconds = time.perf_counter() - started
            print(f"  v={values}, b={size}: {found:,} of {total:,} batches ({seconds:.0f} s)", flush=True)


def convolutions() -> None:
    data = cifar10_small()
    asked = challenge(data, lenet_zhu, 2, SEED)
    started = time.process_time()
    claimed = GaussNewton().forge(asked)
    seconds = time.process_time() - started
    length = update_error(asked.model, asked.batch, Batch(images=0 * claimed.images, labels=claimed.labels))
    error = update_error(asked.model, asked.batch, claimed, levels=False)
    rounded = update_error(asked.model, asked.batch, claimed)
    psnr = -10 * float(torch.log10((claimed.images - asked.batch.images).square().mean()))
    print(
        f"Gauss-Newton, LeNetZhu, two CIFAR-10 images: update {error:.1e} away, {rounded:.1e} in whole grey "
        f"levels (of {length:.1e}), images at {psnr:.1f} dB, in {domain_of(claimed, 2, data.task)}, "
        f"{seconds:.0f} CPU s"
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    parts = {
        "closed_form": closed_form,
        "lattice": lattice,
        "fours": four_images,
        "collisions": collisions,
        "convolutions": convolutions,
    }
    for part in sys.argv[1:] or parts:
        parts[part]()
