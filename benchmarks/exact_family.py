"""The exact family on batches that nobody looked at before: shares recovered, counts, certificates, time.

python benchmarks/exact_family.py [--only two_layer trained head fedavg noise labels] [--batches 10]

Published beside it, where there is something: SPEAR++ (2510.24200), about 65 images at width 1000; Shariati
and Meybodi (2026), peeling after LT codes, float64: MNIST .484, .017, .002 and CIFAR-10 .994, .666, .215 of
64, 128, 256 images at width 1000. Their method begins with units that fire for one image alone, ours not.
"""

import argparse
import functools
import time
from collections.abc import Callable, Sequence

import torch
from exact import preset, train
from torch import Tensor, nn

from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Attack
from fedsim.core.training import batch_gradient
from fedsim.core.types import Observation, Reconstruction, Task, Truth
from fedsim.data.cifar10_small import cifar10_small
from fedsim.data.images import ArrayImages, Dataset
from fedsim.data.mnist_small import mnist_small
from fedsim.data.random_labels import random_labels
from fedsim.metrics.certified import right_certificates
from fedsim.models.last_linear import last_features
from fedsim.models.lenet5 import lenet5
from fedsim.models.mlp import mlp
from fedsim.models.resnet import resnet
from fedsim.models.resnet_cifar import resnet_cifar

NEAR = 1e-3  # relative error of an example that is called recovered
Make = Callable[[Task], nn.Module]


def hundred_classes(data: Dataset) -> Dataset:
    """Split each of ten classes into ten by brightness: a hundred classes that can be learnt."""

    def split(images: ArrayImages) -> ArrayImages:
        labels, bright = (
            images.labels.clone(),
            images.batch(torch.arange(len(images.labels))).mean(dim=(1, 2, 3)),
        )
        for label in range(10):
            places = (images.labels == label).nonzero()[:, 0]
            ranks = bright[places].argsort().argsort()
            labels[places] = 10 * label + 10 * ranks // len(places)
        return ArrayImages(pixels=images.pixels, labels=labels)

    assert isinstance(data.train, ArrayImages)
    assert isinstance(data.test, ArrayImages)
    task = data.task
    hundred = Task(input_shape=task.input_shape, num_classes=100, mean=task.mean, std=task.std)
    return Dataset(task=hundred, train=split(data.train), test=split(data.test))


def drawn(data: Dataset, size: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return a batch of training images with labels."""
    places = torch.randperm(len(data.train.labels), generator=torch.Generator().manual_seed(seed))[:size]
    return data.train.batch(places), data.train.labels[places]


def sent_by(model: nn.Module, batches: Sequence[tuple[Tensor, Tensor]], rate: float | None) -> Observation:
    """Return what a client sends: its gradient, or its update after a step on each batch."""
    sent = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    size = sum(len(labels) for _, labels in batches)
    if rate is None:
        received, _ = batch_gradient(model, *batches[0])
        return Observation(
            round=1, client=0, sent=sent, received=received, kind="gradient", num_examples=size
        )
    for images, labels in batches:
        gradient, _ = batch_gradient(model, images, labels)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter -= rate * gradient[name]
    received = {name: parameter.detach() - sent[name] for name, parameter in model.named_parameters()}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(sent[name])
    told = {"local_steps": len(batches), "learning_rate": rate}
    return Observation(
        round=1, client=0, sent=sent, received=received, kind="update", num_examples=size, **told
    )


def recovered(guess: Reconstruction, truth: Truth) -> float:
    """Return the share of examples that are there within NEAR."""
    found = guess.images if guess.images is not None else guess.embeddings
    true = truth.images if guess.images is not None else truth.embeddings
    if found is None or true is None or not len(found):
        return 0.0
    goals = true.double().flatten(1)
    nearest = torch.cdist(goals, found.double().flatten(1)).min(dim=1).values
    return float((nearest <= NEAR * goals.norm(dim=1)).double().mean())


def row(
    name: str,
    attack: Attack,
    data: Dataset,
    make: Make,
    size: int,
    options: argparse.Namespace,
    *,
    steps: int = 0,
    local: int = 1,
    rate: float | None = None,
    repeated: bool = False,
    noise: float = 0.0,
) -> None:
    """Attack batches of fresh models, and print what came back; steps: of training before."""
    shares, counted, seconds, certified, false = list[float](), list[float](), list[float](), 0, 0
    model = make(data.task)
    if steps:
        torch.manual_seed(options.first)
        model = make(data.task)
        train(model, data, steps)
    for seed in range(options.first, options.first + options.batches):
        if not steps:
            torch.manual_seed(seed)
            model = make(data.task)
        model.eval()
        batches = [drawn(data, size, 1000 * seed + (0 if repeated else step)) for step in range(local)]
        seen = sent_by(model, batches, rate)
        if noise:
            random = torch.Generator().manual_seed(seed)
            for tensor in seen.received.values():
                tensor += noise * torch.randn(tensor.shape, generator=random)
        images, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
        started = time.process_time()
        try:
            guess = attack.run(model, data.task, [seen])
        except FedsimError as error:
            print(f"  seed {seed}: {str(error)[:100]}")
            guess = Reconstruction()
        seconds.append(time.process_time() - started)
        features, _ = last_features(model, data.task.input_shape, seen.sent, images)
        truth = Truth(round=1, client=0, images=images, labels=labels, embeddings=features)
        shares.append(recovered(guess, truth))
        true = labels.bincount(minlength=data.task.num_classes)
        counts = guess.class_counts if guess.class_counts is not None else torch.zeros_like(true)
        counted.append(float(torch.minimum(counts, true).sum()) / len(labels))
        right = right_certificates(guess, truth)
        certified += 0 if right is None else len(right)
        false += 0 if right is None else int((~right).sum())
    whole = sum(share == 1 for share in shares)
    exact = sum(share == 1 for share in counted)
    print(
        f"{name:52} K={size * local:<4} recovered {sum(shares) / len(shares):5.3f}, all in {whole:>2} of "
        f"{len(shares)}; counts right in {exact:>2}, on average {sum(counted) / len(counted):5.3f}; "
        f"certified {certified}, false {false}; {sum(seconds) / len(seconds):5.1f} CPU s",
        flush=True,
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    parts = ("two_layer", "trained", "head", "fedavg", "noise", "labels")
    options.add_argument("--only", nargs="*", default=parts, choices=parts)
    options.add_argument("--batches", type=int, default=10)
    options.add_argument("--first", type=int, default=40, help="first seed")
    chosen = options.parse_args()
    torch.set_num_threads(1)
    mnist, cifar = mnist_small(), cifar10_small()
    wide: Make = functools.partial(mlp, depth=2, width=1000)
    first, head, fedavg = (preset(name) for name in ("first_layer_peeling", "head_peeling", "fedavg_peeling"))
    peeling, labels, ilrg = preset("peeling"), preset("labels"), preset("ilrg")
    if "two_layer" in chosen.only:
        for size in (64, 128):
            row("first_layer_peeling, 784-1000-10/MNIST", first, mnist, wide, size, chosen)
            row("first_layer_peeling, 3072-1000-10/CIFAR-10", first, cifar, wide, size, chosen)
    if "trained" in chosen.only:
        row("first_layer_peeling, 784-1000-10, 300 steps", first, mnist, wide, 64, chosen, steps=300)
        row("peeling, FCN-3/MNIST, 300 steps", peeling, mnist, mlp, 32, chosen, steps=300)
        for size in (72, 96):
            row("peeling, FCN-3/MNIST", peeling, mnist, mlp, size, chosen)
    if "head" in chosen.only:
        hundred, residual = hundred_classes(cifar), functools.partial(resnet_cifar, depth=20)
        for size in (24, 48):
            row("head_peeling, LeNet-5, 100 classes", head, hundred, lenet5, size, chosen)
            row(
                "head_peeling, LeNet-5, 100 classes, 1000 steps",
                head,
                hundred,
                lenet5,
                size,
                chosen,
                steps=1000,
            )
            row("head_peeling, ResNet-20, 100 classes", head, hundred, residual, size, chosen)
        row("head_peeling, LeNet-5, 10 classes", head, cifar, lenet5, 4, chosen)
        row("head_peeling, LeNet-5, 10 classes, 1000 steps", head, cifar, lenet5, 4, chosen, steps=1000)
    if "fedavg" in chosen.only:
        for rate in (0.01, 0.05, 0.1):
            name = f"fedavg_peeling, FCN-3, rate {rate:g}, 5 steps"
            row(name, fedavg, mnist, mlp, 8, chosen, local=5, rate=rate)
        row(
            "fedavg_peeling, FCN-3, 5 steps on one batch",
            fedavg,
            mnist,
            mlp,
            16,
            chosen,
            local=5,
            rate=0.05,
            repeated=True,
        )
        row("fedavg_peeling, FCN-3, 5 steps", fedavg, mnist, mlp, 16, chosen, local=5, rate=0.05)
        row("fedavg_peeling, FCN-3, 10 steps", fedavg, mnist, mlp, 8, chosen, local=10, rate=0.05)
    if "noise" in chosen.only:
        for noise in (1e-7, 1e-6, 1e-5, 1e-4):
            row(f"peeling, FCN-3, noise {noise:g}", peeling, mnist, mlp, 8, chosen, noise=noise)
    if "labels" in chosen.only:
        thousand = random_labels(data=cifar, num_classes=1000)
        row("labels, ResNet-18, 1000 classes", labels, thousand, resnet, 256, chosen)
        for steps in (1000, 3000):
            for size in (8, 16, 24):
                for name, attack in (("labels", labels), ("ilrg", ilrg)):
                    row(
                        f"{name}, LeNet-5/MNIST, {steps} steps",
                        attack,
                        mnist,
                        lenet5,
                        size,
                        chosen,
                        steps=steps,
                    )


if __name__ == "__main__":
    main()
