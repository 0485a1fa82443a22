"""Forgeries: the closed form against the pseudo-inverse, whole grey levels, fours, and counted collisions.

python benchmarks/forging.py [closed_form] [lattice] [fours] [collisions] [invisible] [twins]
(half an hour)
"""

import copy
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from math import comb

import torch
from torch import Tensor, nn

from fedsim.attacks.integrity.forging.box import Box
from fedsim.attacks.integrity.forging.brute_force import colliding, example_gradients
from fedsim.attacks.integrity.forging.first_layer import basis, first_layer
from fedsim.attacks.integrity.forging.invisible import Invisible
from fedsim.attacks.integrity.forging.lattice import Lattice
from fedsim.attacks.integrity.forging.parallelogram import Parallelogram, fours
from fedsim.attacks.integrity.forging.perturbation import Perturbation, invisible
from fedsim.attacks.integrity.forging.unread import reading, same_gradient
from fedsim.config.build_central import forging_game
from fedsim.config.compose import compose
from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Challenge
from fedsim.core.randomness import generator
from fedsim.core.training import Batch, batch_gradient, exact_levels, load_weights, sgd_step, weights_of
from fedsim.core.types import Task
from fedsim.data.cifar10_small import cifar10_small
from fedsim.data.images import Dataset
from fedsim.data.mnist_small import mnist_small
from fedsim.data.synthetic import synthetic
from fedsim.data.tiny import tiny
from fedsim.integrity.forge import play
from fedsim.integrity.judge import Demands, RecordedStep, StepVerdict, judge_step
from fedsim.models.convnet import convnet
from fedsim.models.lenet5 import lenet5
from fedsim.models.mlp import mlp
from fedsim.models.resnet_cifar import resnet_cifar
from fedsim.models.softmax import softmax
from fedsim.models.vggmini import vggmini

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


def judged(asked: Challenge, claimed: Batch) -> StepVerdict:
    """What the verifier of a game says, who has the batch to calibrate on."""
    before = weights_of(asked.model)
    sgd_step(asked.model, asked.batch, RATE)
    step = RecordedStep(
        model=asked.model,
        before=before,
        after=weights_of(asked.model),
        batch=asked.batch,
        unwanted=asked.unwanted,
        task=asked.task,
        learning_rate=RATE,
        precision="float32",
        threads=1,
    )
    verdict = judge_step(step, claimed, Demands())
    load_weights(asked.model, before)
    return verdict


def lattice() -> None:
    """Whole grey levels, all examples replaced, or a fifth of them with a hidden layer."""
    cases = (
        ("MNIST, softmax regression, b=64", mnist_small(), softmax, 64, 64),
        ("CIFAR-10, softmax regression, b=100", cifar10_small(), softmax, 100, 100),
        ("MNIST, softmax regression, b=20", mnist_small(), softmax, 20, 20),
        ("MNIST, 32 hidden units, b=100", mnist_small(), lambda task: mlp(task, depth=2, width=32), 100, 20),
        ("MNIST, softmax regression, b=100", mnist_small(), softmax, 100, 100),
    )
    for name, data, make, size, unwanted in cases:
        found, once, accepted, seconds = list[float](), 0, 0, list[float]()
        for number in range(10):
            asked = challenge(data, make, size, SEED + number, steps=10 * number)
            asked = replace(asked, unwanted=torch.arange(unwanted))
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


def unread_pixels() -> None:
    """Pixels that the gradient does not read: images changed, bits, how far, at stages of training."""
    print(
        "invisible, b=100, learning rate .01: images changed, to the bit, rms in grey levels (median, most)"
    )
    for name, data, stages in (
        ("MNIST", mnist_small(), (0, 300, 1500)),
        ("CIFAR-10", cifar10_small(), (0, 300)),
    ):
        for steps in stages:
            for seed in range(SEED + 100, SEED + 105):
                asked = challenge(data, lenet5, 100, seed, steps=steps)
                _tell_moved(f"{name}, LeNet-5, step {steps}, seed {seed}", asked)
    data = cifar10_small()
    for name, make in (
        ("VGGmini", vggmini),
        ("ConvNet", lambda task: convnet(task, width=16)),
        ("ResNet-20", resnet_cifar),
    ):
        for steps in (0, 10):
            for seed in (SEED + 100, SEED + 101):
                asked = challenge(data, make, 20, seed, steps=steps)
                _tell_moved(f"CIFAR-10, {name}, b=20, step {steps}, seed {seed}", asked)
    for name, make in (("softmax", softmax), ("32 hidden units", lambda task: mlp(task, depth=2, width=32))):
        asked = challenge(mnist_small(), make, 100, SEED + 100, steps=30)
        layer = first_layer(asked.model, asked.batch)
        kept, pixels = basis(layer.free_weight.T).shape[1], layer.weight.shape[1]
        rank = basis(layer.errors).shape[1]
        claimed = Box().forge(asked) if name == "softmax" else Perturbation(size=0.02).forge(asked)
        moved = 255 * float((claimed.images - asked.batch.images).square().mean().sqrt())
        real = update_error(asked.model, asked.batch, claimed, levels=False)
        rounded = update_error(asked.model, asked.batch, claimed)
        print(
            f"  MNIST, {name}: no pixel is unread; {pixels - kept} x {100 - rank} directions are, e.g. "
            f"{moved:.1f} grey levels (rms) at {real:.1e}; rounded to whole levels {rounded:.1e}"
        )


def _tell_moved(name: str, asked: Challenge) -> None:
    started = time.process_time()
    free = reading(asked.model, asked.batch).free.flatten(1).sum(dim=1).double().mean()
    try:
        claimed = Invisible().forge(asked)
    except FedsimError:
        print(f"  {name}: none; {free:.0f} pixels an image meet no error", flush=True)
        return
    gaps = (claimed.images - asked.batch.images).flatten(1).square().mean(dim=1).sqrt() * 255
    same = same_gradient(asked.model, asked.batch, claimed.images)
    print(
        f"  {name}: {int((gaps > 0).sum())} of {len(gaps)} changed, {'same bits' if same else 'OTHER BITS'}, "
        f"{float(gaps.median()):.1f}, {float(gaps.max()):.1f}; {free:.0f} pixels an image meet no error, "
        f"{time.process_time() - started:.0f} CPU s",
        flush=True,
    )


def twins() -> None:
    """Every twin that brute force finds in small worlds, over ten seeds: is it accepted and counted?"""
    found = accepted = counted = 0
    for seed in range(SEED + 200, SEED + 210):
        for values, size in ((2, 3), (2, 4), (2, 5), (3, 4)):
            settings = (
                f"seed={seed}",
                "data=tiny",
                f"data.values={values}",
                "model=softmax",
                "forgery=[brute_force]",
                "audit=proof_of_learning",
                "name=twins",
                "proof.steps=9",
                f"proof.batch_size={size}",
                "proof.learning_rate=0.01",
                "forge.fractions=[0]",
                "forge.precision=float64",
            )
            rows = [move.row for move in play(forging_game(compose(settings)))]
            found += sum(row.judged for row in rows)
            accepted += sum(row.accepted for row in rows)
            counted += sum(row.twin for row in rows)
    print(f"twins of sampled batches: {found} found, {accepted} accepted, {counted} counted as twins")


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


if __name__ == "__main__":
    torch.set_num_threads(1)
    parts = {
        "closed_form": closed_form,
        "lattice": lattice,
        "fours": four_images,
        "collisions": collisions,
        "invisible": unread_pixels,
        "twins": twins,
    }
    for part in sys.argv[1:] or parts:
        parts[part]()
