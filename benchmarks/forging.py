"""Forgeries: the closed form against the pseudo-inverse, directions, fours, and counted collisions.

python benchmarks/forging.py [closed_form] [directions] [fours] [collisions] [twins] [planning]
(ten minutes)
"""

import sys
import time
from dataclasses import replace
from functools import partial
from math import comb

import torch

from fedsim.attacks.integrity.forging.box import Box
from fedsim.attacks.integrity.forging.brute_force import BruteForce, colliding, example_gradients
from fedsim.attacks.integrity.forging.brute_force import twins as all_twins
from fedsim.attacks.integrity.forging.first_layer import basis, first_layer
from fedsim.attacks.integrity.forging.parallelogram import Parallelogram, fours
from fedsim.attacks.integrity.forging.perturbation import Perturbation, invisible
from fedsim.core.challenges import challenge_on
from fedsim.core.errors import FedsimError
from fedsim.core.randomness import generator
from fedsim.core.training import Batch, exact_levels, sgd_step, weights_of
from fedsim.data.cifar10_small import cifar10_small
from fedsim.data.mnist_small import mnist_small
from fedsim.data.synthetic import synthetic
from fedsim.data.tiny import tiny
from fedsim.flower.evaluation import evaluate_model
from fedsim.integrity.trial import RATE, judged, trial, update_error
from fedsim.models.lenet5 import lenet5
from fedsim.models.mlp import mlp
from fedsim.models.softmax import softmax

TWINS = 12  # batches of each small world
SEED = 500  # batches that were not looked at while the attacks were made


def closed_form() -> None:
    print("closed form against the pseudo-inverse of all equations (CPU s, one thread)")
    for side, size, units in ((5, 12, 10), (7, 16, 10), (9, 24, 10)):
        data = synthetic(shape=(1, side, side), num_classes=4, train_size=200, test_size=8)
        asked = trial(data, lambda task, units=units: mlp(task, depth=2, width=units), size, seed=SEED)
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
    asked = trial(data, lambda task: mlp(task, depth=3, width=100), 256, seed=SEED)
    started = time.process_time()
    claimed = Perturbation().forge(asked)
    seconds = time.process_time() - started
    error = update_error(asked.model, asked.batch, claimed) / RATE
    print(
        f"  d=3072, b=256, 3 layers: {seconds:.2f} s; gradient {error:.1e} away (pixels rounded to float32)"
    )


def directions() -> None:
    """Fully connected layers read every pixel: what they leave are directions, exact in real numbers."""
    for name, make in (("softmax", softmax), ("32 hidden units", lambda task: mlp(task, depth=2, width=32))):
        asked = trial(mnist_small(), make, 100, seed=SEED + 100, steps=30)
        layer = first_layer(asked.model, asked.batch)
        kept, pixels = basis(layer.free_weight.T).shape[1], layer.weight.shape[1]
        rank = basis(layer.errors).shape[1]
        claimed = Box().forge(asked) if name == "softmax" else Perturbation(size=0.02).forge(asked)
        moved = 255 * float((claimed.images - asked.batch.images).square().mean().sqrt())
        real = update_error(asked.model, asked.batch, claimed)
        whole = Batch(images=torch.round(claimed.images * 255) / 255, labels=claimed.labels)
        rounded = update_error(asked.model, asked.batch, whole)
        print(
            f"  MNIST, {name}: no pixel is unread; {pixels - kept} x {100 - rank} directions are, e.g. "
            f"{moved:.1f} grey levels (rms) at {real:.1e}; rounded to whole levels {rounded:.1e}"
        )


def twins() -> None:
    """Batches that have a twin, in small worlds, over ten seeds: is the twin found, accepted and counted?"""
    found = accepted = counted = total = 0
    for seed in range(SEED + 200, SEED + 210):
        for values, size in ((2, 4), (2, 5), (3, 3)):
            data = tiny(values=values)
            torch.manual_seed(seed)
            model = softmax(data.task).double()
            images = exact_levels(data.train.batch(torch.arange(len(data.train.labels))))
            gradients = example_gradients(model, images, data.train.labels)
            pairs = list(all_twins(gradients, size))
            chosen = torch.randperm(len(pairs), generator=generator(seed, "twins"))[:TWINS]
            for batch, _ in (pairs[number] for number in chosen.tolist()):
                asked = challenge_on(
                    torch.tensor(batch),
                    model=model,
                    unwanted=0.0,
                    task=data.task,
                    owned=torch.arange(len(images)),
                    examples=partial(_some, images, data.train.labels),
                    chance=generator(seed),
                )
                total += 1
                try:
                    claimed = BruteForce().forge(asked)
                except FedsimError:
                    continue
                verdict = judged(asked, claimed, precision="float64")
                found, accepted = found + 1, accepted + verdict.accepted
                counted += verdict.twin
    print(f"twins: {total} batches have one; {found} found, {accepted} accepted, {counted} counted as twins")


def _some(images: torch.Tensor, labels: torch.Tensor, own: torch.Tensor) -> Batch:
    return Batch(images=images[own], labels=labels[own])


def planning(steps: int = 200, rate: float = 0.1) -> None:
    """What batches of planned fours cost the training: test accuracy beside that of honest batches."""
    data = mnist_small()
    for seed in range(SEED + 300, SEED + 305):
        found = list[float]()
        for planned in (False, True):
            asked = trial(data, softmax, 100, seed=seed)
            for step in range(steps):
                order = torch.randperm(len(data.train.labels), generator=generator(seed, "step", step))
                own = replace(asked, batch=asked.examples(order[:100]))
                used = Parallelogram(tries=1).compose(own) if planned else own.batch
                sgd_step(asked.model, used, rate)
            found.append(evaluate_model(asked.model, weights_of(asked.model), data.test, "cpu")[0])
        print(f"seed {seed}: accuracy {found[0]:.3f} on honest batches, {found[1]:.3f} on planned ones")


def four_images() -> None:
    data = mnist_small()
    for name, make in (("softmax regression", softmax), ("LeNet-5", lenet5)):
        errors = []
        for number in range(3):
            asked = trial(data, make, 80, seed=SEED + number, steps=20)
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


if __name__ == "__main__":
    torch.set_num_threads(1)
    parts = {
        "closed_form": closed_form,
        "directions": directions,
        "fours": four_images,
        "collisions": collisions,
        "twins": twins,
        "planning": planning,
    }
    for part in sys.argv[1:] or parts:
        parts[part]()
