"""The exact family on batches that nobody looked at before: shares recovered, counts, certificates, time.

python benchmarks/exact_family.py [two_layer_mnist_64 fedavg ...] [--batches 10] [--first 40]

Names are those of benchmarks/exact_bars.py, or beginnings of them; none: all of them, which takes hours.

Published beside it, where there is something: SPEAR++ (2510.24200), about 65 images at width 1000; Shariati
and Meybodi (2026), peeling after LT codes, float64: MNIST .484, .017, .002 and CIFAR-10 .994, .666, .215 of
64, 128, 256 images at width 1000. Their method begins with units that fire for one image alone, ours not.
"""

import argparse
import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from exact import preset, train
from exact_bars import Bar, Make, bars
from torch import Tensor, nn

from fedsim.attacks.privacy.exact.behind import softmax_error
from fedsim.core.errors import FedsimError
from fedsim.core.training import batch_gradient
from fedsim.core.types import Observation, Reconstruction, Task, Truth
from fedsim.data.cifar10_small import cifar10_small
from fedsim.data.images import ArrayImages, Dataset
from fedsim.data.mnist_small import mnist_small
from fedsim.data.random_labels import random_labels
from fedsim.defenses.privacy.quantize import Quantize
from fedsim.metrics.certified import right_certificates
from fedsim.models.last_linear import last_features

NEAR = 1e-3  # relative error of an example that is called recovered
EXACT = 100.0  # dB
QUIET = 1e-6  # of the largest error in a batch: about what float32 leaves of a sum of ten numbers


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


@functools.cache
def dataset(name: str) -> Dataset:
    """Return a data set by its short name."""
    if name == "mnist":
        return mnist_small()
    cifar = cifar10_small()
    if name == "thousand":
        return random_labels(data=cifar, num_classes=1000)
    return hundred_classes(cifar) if name == "hundred" else cifar


@functools.cache
def trained(make: Make, name: str, steps: int, accuracy: float, seed: int) -> nn.Module:
    """Return a model after so many plain steps, or after as many with momentum as the accuracy takes."""
    data = dataset(name)
    torch.manual_seed(seed)
    model = make(data.task)
    if steps:
        train(model, data, steps)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    random = torch.Generator().manual_seed(seed)
    while accuracy and right(model, data.train) < accuracy:
        model.train()
        for _ in range(50):
            drawn = torch.randint(len(data.train.labels), (64,), generator=random)
            loss = nn.functional.cross_entropy(model(data.train.batch(drawn)), data.train.labels[drawn])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    found = f"{right(model, data.train):.2f} on training, {right(model, data.test):.2f} on test images"
    print(f"  trained: accuracy {found}", flush=True)
    return model.eval()


@torch.no_grad()
def right(model: nn.Module, images: ArrayImages) -> float:
    """Return the accuracy on the first 500 images."""
    places = torch.arange(min(500, len(images.labels)))
    return float((model.eval()(images.batch(places)).argmax(1) == images.labels[places]).double().mean())


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


def disturb(seen: Observation, bar: Bar, seed: int) -> None:
    """Add noise to what was received, or round it."""
    random = torch.Generator().manual_seed(seed)
    for tensor in seen.received.values():
        tensor += bar.noise * torch.randn(tensor.shape, generator=random)
    if bar.rounding:
        method = {"method": bar.rounding} if "float" in bar.rounding else {"levels": int(bar.rounding)}
        seen.received.update(Quantize(**method).on_reply(seen.received, seen.kind, random))


def bound(seen: Observation, exact: Tensor, images: Tensor, data: Dataset) -> float:
    """Return the Cramer-Rao bound, as PSNR, of images read from the first layer with all errors known.

    G = D^T X with noise of deviation s: no unbiased guess has a variance below s^2 [(D D^T)^-1]_kk a pixel.
    exact: the first layer's gradient before it was disturbed.
    """
    mean, std = (torch.tensor(v).double().view(1, -1, 1, 1) for v in (data.task.mean, data.task.std))
    inputs = ((images.double() - mean) / std).flatten(1)
    noise = float((next(iter(seen.received.values())) - exact).double().square().mean())
    errors = exact.double() @ torch.linalg.pinv(inputs)  # (units, K)
    variances = noise * torch.linalg.inv(errors.T @ errors).diagonal() * float(std.square().mean())
    return float((-10 * variances.clamp(min=1e-16).log10()).mean())


@dataclass(frozen=True, kw_only=True)
class Batch:
    """What came back of one batch."""

    share: float  # of the examples within NEAR
    counts: float  # share of the labels
    classes: float  # LnAcc
    whole: bool  # every image above EXACT
    decibels: float
    certified: int
    false: int
    seconds: float
    bound: float  # dB
    quiet: float  # share of the examples whose errors float32 loses beside the others'
    told: float  # share of the labels of the others that bounds of counts make certain
    outside: int  # counts that are not within their bounds


def attacked(bar: Bar, seed: int, trained_by: int) -> Batch:
    """Attack one batch of a fresh model, or of one that was trained."""
    data = dataset(bar.data)
    torch.manual_seed(seed)
    if bar.steps or bar.accuracy:
        model = trained(bar.model, bar.data, bar.steps, bar.accuracy, trained_by)
    else:
        model = bar.model(data.task).eval()
    batches = [drawn(data, bar.size, 1000 * seed + (0 if bar.repeated else s)) for s in range(bar.local)]
    seen = sent_by(model, batches, bar.rate)
    exact = next(iter(seen.received.values())).clone()
    disturb(seen, bar, seed)
    images, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    attack = preset(bar.attack)
    started = time.process_time()
    try:
        guess = attack.run(model, data.task, [seen])
    except FedsimError as error:
        print(f"  seed {seed}: {str(error)[:100]}")
        guess = Reconstruction()
    seconds = time.process_time() - started
    features, _ = last_features(model, data.task.input_shape, seen.sent, images)
    truth = Truth(round=1, client=0, images=images, labels=labels, embeddings=features)
    true = labels.bincount(minlength=data.task.num_classes)
    counts = guess.class_counts if guess.class_counts is not None else torch.zeros_like(true)
    certain = right_certificates(guess, truth)
    errors, lost, bounds = relative_errors(guess, truth), quiet(model, images, labels), guess.count_bounds
    return Batch(
        share=float((errors <= NEAR).double().mean()),
        counts=float(torch.minimum(counts, true).sum()) / len(labels),
        classes=float((counts == true).double().mean()),
        whole=bool((decibels(guess, truth) > EXACT).all()),
        decibels=float(decibels(guess, truth).mean()),
        certified=0 if certain is None else len(certain),
        false=0 if certain is None else int((~certain).sum()),
        seconds=seconds,
        bound=bound(seen, exact, images, data) if bar.noise or bar.rounding else 0.0,
        quiet=float(lost.double().mean()),
        told=told(guess, labels[~lost]),
        outside=0 if bounds is None else int(((true < bounds[0]) | (true > bounds[1])).sum()),
    )


@torch.no_grad()
def quiet(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Say of each example whether its error at the logits is lost beside the batch's largest."""
    errors = softmax_error(model(images).double(), labels).norm(dim=1)
    return errors < QUIET * errors.max()


def told(guess: Reconstruction, labels: Tensor) -> float:
    """Return the share of these labels that the fewest of each class account for."""
    if guess.count_bounds is None:
        return 0.0
    fewest = guess.count_bounds[0]
    there = labels.bincount(minlength=len(fewest))
    return float(torch.minimum(fewest, there).sum()) / max(1, len(labels))


def relative_errors(guess: Reconstruction, truth: Truth) -> Tensor:
    """Return how far the nearest guess is from every true example."""
    found = guess.images if guess.images is not None else guess.embeddings
    true = truth.images if guess.images is not None else truth.embeddings
    if found is None or true is None or not len(found):
        return torch.ones(len(truth.labels))
    goals = true.double().flatten(1)
    return torch.cdist(goals, found.double().flatten(1)).min(dim=1).values / goals.norm(dim=1)


def decibels(guess: Reconstruction, truth: Truth) -> Tensor:
    """Return the PSNR of the nearest guess for every true image."""
    if guess.images is None or truth.images is None or not len(guess.images):
        return torch.zeros(len(truth.labels))
    goals, found = truth.images.double().flatten(1), guess.images.double().flatten(1)
    squares = torch.cdist(goals, found).min(dim=1).values.square() / goals.shape[1]
    return -10 * squares.clamp(min=1e-16).log10()


def row(name: str, bar: Bar, batches: int, first: int, model: int) -> tuple[int, int]:
    """Attack batches, print what came back; return the numbers of certificates and of false ones."""
    found = [attacked(bar, seed, model) for seed in range(first, first + batches)]

    def mean(field: str) -> float:
        return sum(getattr(one, field) for one in found) / len(found)

    certified, false = sum(one.certified for one in found), sum(one.false for one in found)
    asked = f"{bar.asked} ({mean('bound'):.1f} dB)" if mean("bound") else bar.asked
    print(
        f"{name:24} K={bar.size * bar.local:<4} recovered {mean('share'):5.3f}, all in "
        f"{sum(one.share == 1 for one in found):>2} of {batches}, above 100 dB in "
        f"{sum(one.whole for one in found):>2} ({mean('decibels'):5.1f}); counts right in "
        f"{sum(one.counts == 1 for one in found):>2}, on average {mean('counts'):5.3f}, LnAcc "
        f"{mean('classes'):5.3f}; certified {certified}, false {false}; "
        f"too quiet {mean('quiet'):.3f}, of the others certain {mean('told'):.3f}, counts out of bounds "
        f"{sum(one.outside for one in found)}; {mean('seconds'):5.1f} CPU s, "
        f"at most {max(one.seconds for one in found):.1f}; asked: {asked}",
        flush=True,
    )
    return certified, false


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("names", nargs="*", help="rows, or beginnings of their names")
    options.add_argument("--batches", type=int, default=10)
    options.add_argument("--first", type=int, default=40, help="first seed")
    options.add_argument("--model", type=int, help="seed of models that are trained; unless said, the first")
    chosen = options.parse_args()
    model = chosen.first if chosen.model is None else chosen.model
    torch.set_num_threads(1)
    rows = {
        name: bar
        for name, bar in bars().items()
        if not chosen.names or any(name.startswith(begun) for begun in chosen.names)
    }
    counted = [row(name, bar, chosen.batches, chosen.first, model) for name, bar in rows.items()]
    certified, false = (sum(part) for part in zip(*counted, strict=True)) if counted else (0, 0)
    print(f"certified in all rows: {certified}, of them false: {false}")


if __name__ == "__main__":
    main()
