"""Exact reconstruction from honest models: how far each attack goes, over many seeds, with CPU seconds.

python benchmarks/exact.py [--batches 10] [--images 8]
"""

import argparse
import functools
import time
from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import nn

from fedsim.config import build
from fedsim.config.compose import compose
from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Attack
from fedsim.core.randomness import generator
from fedsim.core.training import batch_gradient
from fedsim.core.types import Observation, Task, Truth
from fedsim.data.cifar10_small import cifar10_small
from fedsim.data.images import Dataset
from fedsim.data.mnist_small import mnist_small
from fedsim.metrics.psnr import PSNR
from fedsim.models.layers import Normalize
from fedsim.models.lenet5 import lenet5
from fedsim.models.lenet_zhu import lenet_zhu
from fedsim.models.mlp import mlp

EXACT = 100.0  # dB


def preset(name: str, *overrides: str) -> Attack:
    return build.experiment(compose([f"attack={name}", *overrides, "name=benchmark"])).attack


def gelu_cnn(task: Task, kernel: int = 5) -> nn.Module:
    """Three smooth convolutions and a linear layer, with torch's own initialisation."""
    layers: OrderedDict[str, nn.Module] = OrderedDict(normalize=Normalize(task))
    for number, (entering, stride) in enumerate(((3, 2), (16, 2), (16, 1)), start=1):
        layers[f"conv{number}"] = nn.Conv2d(entering, 16, kernel, stride=stride, padding=kernel // 2)
        layers[f"activation{number}"] = nn.GELU()
    layers["flatten"], layers["output"] = nn.Flatten(), nn.Linear(1024, task.num_classes)
    return nn.Sequential(layers)


def train(model: nn.Module, data: Dataset, steps: int) -> None:
    """Train by plain SGD, batches of 64."""
    random = torch.Generator().manual_seed(0)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(steps):
        drawn = torch.randint(len(data.train.labels), (64,), generator=random)
        loss = nn.functional.cross_entropy(model(data.train.batch(drawn)), data.train.labels[drawn])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


def row(
    name: str,
    attack: Attack,
    data: Dataset,
    make: Callable[[Task], nn.Module],
    size: int,
    batches: int,
    steps: int = 0,
) -> None:
    """Attack batches of fresh models and print how many came back exactly."""
    means, lowest, seconds, sure = list[float](), list[float](), list[float](), list[float]()
    for seed in range(batches):
        torch.manual_seed(1000 + seed)
        model = make(data.task).eval()
        if steps:
            train(model, data, steps)
        drawn = torch.randperm(len(data.train.labels), generator=generator(seed, "exact"))[:size]
        images, labels = data.train.batch(drawn), data.train.labels[drawn]
        sent = {key: p.detach().clone() for key, p in model.named_parameters()}
        told = {"kind": "gradient", "num_examples": size}
        received, _ = batch_gradient(model, images, labels)
        seen = Observation(round=1, client=0, sent=sent, received=received, **told)
        started = time.process_time()
        try:
            guess = attack.run(model, data.task, [seen])
        except FedsimError as error:
            print(f"  {name}, seed {seed}: {error}")
            means.append(0.0)
            lowest.append(0.0)
            continue
        seconds.append(time.process_time() - started)
        score = PSNR().score(guess, Truth(round=1, client=0, images=images, labels=labels))
        assert score is not None
        means.append(score.value)
        lowest.append(min(score.per_example))
        sure.append(guess.residual or 0.0)
    exact = sum(value >= EXACT for value in lowest)
    print(
        f"{name:44} K={size:<4} exact {exact:>2} of {batches:<3} mean {sum(means) / batches:6.1f} dB, "
        f"lowest {min(lowest):6.1f}, residual up to {max(sure, default=0):.0e}, "
        f"{sum(seconds) / max(1, len(seconds)):5.1f} CPU s",
        flush=True,
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--batches", type=int, default=10)
    options.add_argument("--images", type=int, default=8)
    options.add_argument(
        "--only", nargs="*", default=["span", "trained", "activations", "smooth", "relu", "limits"]
    )
    chosen = options.parse_args()
    torch.set_num_threads(1)
    mnist, cifar = mnist_small(), cifar10_small()
    span, peeling = preset("span_matching"), preset("peeling")
    if "span" in chosen.only:
        for size in (4, 8, 16, 24, 32, 48, 64):
            row("span_matching, FCN-3/MNIST", span, mnist, mlp, size, chosen.batches)
        for size in (32, 64):
            row("peeling, FCN-3/CIFAR-10", peeling, cifar, mlp, size, max(1, chosen.batches // 2))
    if "trained" in chosen.only:
        for steps in (100, 1000):
            name = f"peeling, FCN-3/MNIST after {steps} steps"
            for size in (8, 24):
                row(name, peeling, mnist, mlp, size, max(1, chosen.batches // 2), steps)
    if "activations" in chosen.only:
        for activation in ("leaky_relu", "sigmoid", "tanh", "gelu", "silu"):

            def make(task: Task, activation: str = activation) -> nn.Module:
                return mlp(task, activation=activation)

            row(f"peeling, {activation}, CIFAR-10", peeling, cifar, make, 24, max(1, chosen.batches // 2))
    if "smooth" in chosen.only:
        for activation in ("sigmoid", "tanh"):

            def zhu(task: Task, activation: str = activation) -> nn.Module:
                return lenet_zhu(task, activation=activation)

            row(f"rgap, LeNetZhu {activation}", preset("rgap"), cifar, zhu, 1, chosen.images)
            row(f"gauss_newton, LeNetZhu {activation}", preset("gauss_newton"), cifar, zhu, 1, chosen.images)
        row("gauss_newton, 3-layer GELU CNN, 5x5", preset("gauss_newton"), cifar, gelu_cnn, 1, chosen.images)
    if "limits" in chosen.only:  # where Gauss-Newton is known to fail
        newton = preset("gauss_newton")
        row("gauss_newton, 3-layer GELU CNN, 3x3", newton, cifar, functools.partial(gelu_cnn, kernel=3), 1, 2)
        row(
            "gauss_newton, LeNetZhu relu",
            newton,
            cifar,
            functools.partial(lenet_zhu, activation="relu"),
            1,
            2,
        )
        row("gauss_newton, LeNet-5", newton, cifar, lenet5, 1, 2)
        pair = preset("gauss_newton", "attack.optimiser.dense=7000", "attack.optimiser.iterations=9")
        row("gauss_newton, LeNetZhu sigmoid", pair, cifar, lenet_zhu, 2, 1)
    if "relu" in chosen.only:
        for activation in ("leaky_relu", "relu"):

            def kinked(task: Task, activation: str = activation) -> nn.Module:
                return lenet_zhu(task, activation=activation)

            row(f"rgap, LeNetZhu {activation}", preset("rgap"), cifar, kinked, 1, chosen.images)


if __name__ == "__main__":
    main()
