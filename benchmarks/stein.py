"""The Stein attacks over many seeds: how exact, how far, how fast, under which defenses.

python benchmarks/stein.py [--only bars batches ...] [--seeds 10]
"""

import argparse
import copy
import itertools
import math
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import nn

from fedsim.attacks.privacy.stein.decomposition import diagonalise, least_squares, parafac_columns, powers
from fedsim.attacks.privacy.stein.moments import Units
from fedsim.attacks.privacy.stein.stein import estimate
from fedsim.config import build
from fedsim.config.compose import compose
from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Attack
from fedsim.core.randomness import generator
from fedsim.core.training import batch_gradient, load_weights
from fedsim.core.types import Observation, Reconstruction, Task, Truth, Weights
from fedsim.data.cifar10_small import cifar10_small
from fedsim.data.images import Dataset
from fedsim.data.mnist_small import mnist_small
from fedsim.metrics.class_rows import match_rows
from fedsim.metrics.psnr import PSNR
from fedsim.models.fcn3 import fcn3
from fedsim.models.last_linear import layer_inputs
from fedsim.models.layers import activation_layer
from fedsim.models.lenet5 import lenet5
from fedsim.models.two_layer import two_layer

Change = Callable[[Weights, torch.Generator], Weights]
FIRST_SEED = 7000  # none of these was run before the attack was as it is


def preset(name: str, *overrides: str) -> Attack:
    return build.experiment(compose([f"attack={name}", *overrides, "name=benchmark"])).attack


def network(width: int, activation: str) -> Callable[[Task], nn.Module]:
    return lambda task: two_layer(task, width=width, activation=activation)


def noisy(ratio: float) -> Change:
    """Noise in proportion to the root mean square of each tensor."""

    def change(reply: Weights, random: torch.Generator) -> Weights:
        return {
            name: tensor + ratio * tensor.square().mean().sqrt() * torch.randn(tensor.shape, generator=random)
            for name, tensor in reply.items()
        }

    return change


def kept(share: float) -> Change:
    """The largest entries of each tensor."""

    def change(reply: Weights, random: torch.Generator) -> Weights:
        found = dict[str, torch.Tensor]()
        for name, tensor in reply.items():
            least = tensor.abs().flatten().kthvalue(max(1, round((1 - share) * tensor.numel()))).values
            found[name] = torch.where(tensor.abs() > least, tensor, torch.zeros_like(tensor))
        return found

    return change


def row(
    name: str,
    attack: Attack,
    data: Dataset,
    make: Callable[[Task], nn.Module],
    size: int,
    seeds: int,
    change: Change = lambda reply, random: reply,
) -> None:
    """Attack batches of fresh models and print how many came back exactly."""
    lowest, means, seconds, sure = list[float](), list[float](), list[float](), list[float]()
    for seed in range(FIRST_SEED, FIRST_SEED + seeds):
        torch.manual_seed(seed)
        model = make(data.task).eval()
        honest = {key: p.detach().clone() for key, p in model.named_parameters()}
        crafter = copy.copy(attack)
        crafter.seed = seed  # type: ignore[attr-defined]
        sent = crafter.craft(model, data.task, 1, honest)
        load_weights(model, sent)
        drawn = torch.randperm(len(data.train.labels), generator=generator(seed, "stein benchmark"))[:size]
        images, labels = data.train.batch(drawn), data.train.labels[drawn]
        received = change(batch_gradient(model, images, labels)[0], generator(seed, "change"))
        told = {"kind": "gradient", "num_examples": size}
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
        if guess.images is None:
            means.append(example_decibels(model, sent, images, guess)[0])
            lowest.append(example_decibels(model, sent, images, guess)[1])
        else:
            score = PSNR().score(guess, Truth(round=1, client=0, images=images, labels=labels))
            assert score is not None
            means.append(score.value)
            lowest.append(min(score.per_example))
        sure.append(guess.residual or 0.0)
    exact, ordered = sum(value >= 100 for value in lowest), sorted(lowest)
    print(
        f"{name:44} B={size:<4} all >= 100 dB: {exact:>2} of {seeds:<3} "
        f"mean {min(means):5.1f} to {max(means):5.1f}, "
        f"lowest image {ordered[0]:6.1f} (median {ordered[seeds // 2]:6.1f}), "
        f"residual up to {max(sure, default=0):.0e}, {sum(seconds) / max(1, len(seconds)):6.2f} CPU s",
        flush=True,
    )


def example_decibels(
    model: nn.Module, sent: Weights, images: torch.Tensor, guess: Reconstruction
) -> tuple[float, float]:
    """Return the mean and the lowest signal-to-noise ratio of recovered features, in dB."""
    assert guess.embeddings is not None
    assert guess.embedding_layer is not None
    true = layer_inputs(model, guess.embedding_layer, sent, images)[0].double()
    gaps = (match_rows(guess.embeddings.double(), true) - true).norm(dim=1) / true.norm(dim=1)
    values = -20 * gaps.clamp(min=1e-12).log10()
    return float(values.mean()), float(values.min())


def bars(seeds: int) -> None:
    """The figures that the attack has to reach."""
    mnist, cifar, attack = mnist_small(), cifar10_small(), preset("stein_exact")
    for activation in ("tanh", "gelu"):
        row(f"MNIST {activation}, 264 units", attack, mnist, network(264, activation), 8, 2 * seeds)
        row(f"MNIST {activation}, 512 units", attack, mnist, network(512, activation), 16, seeds)
    row("MNIST tanh, 1760 units", attack, mnist, network(1760, "tanh"), 32, max(2, seeds // 2))
    row("CIFAR-10 gelu, 264 units", attack, cifar, network(264, "gelu"), 8, seeds)
    row("CIFAR-10 gelu, 512 units", attack, cifar, network(512, "gelu"), 16, seeds)
    row("MNIST relu, 1568 units", attack, mnist, network(1568, "relu"), 8, seeds)


def activations(seeds: int) -> None:
    """Every activation."""
    mnist, attack = mnist_small(), preset("stein_exact")
    for activation in (
        "tanh",
        "sigmoid",
        "softplus",
        "gelu",
        "silu",
        "elu",
        "relu",
        "leaky_relu",
        "square_cube",
    ):
        row(f"MNIST {activation}, 512 units", attack, mnist, network(512, activation), 16, seeds)


def batches(seeds: int) -> None:
    """How many examples, from how many units."""
    mnist, attack = mnist_small(), preset("stein_exact")
    for activation, size, width in (
        ("tanh", 16, 128),
        ("tanh", 32, 512),
        ("relu", 32, 512),
        ("tanh", 64, 3000),
        ("gelu", 64, 3000),
        ("relu", 64, 3000),
        ("tanh", 64, 6000),
        ("gelu", 64, 6000),
        ("tanh", 96, 8000),
        ("relu", 96, 8000),
        ("tanh", 128, 12000),
        ("relu", 128, 12000),
    ):
        row(f"MNIST {activation}, {width} units", attack, mnist, network(width, activation), size, seeds)


def noise(seeds: int) -> None:
    """Noise in proportion to the gradient."""
    mnist, attack = mnist_small(), preset("stein_exact", "attack.scale=1")
    for width in (784, 3136):
        for ratio in (1e-3, 1e-2, 1e-1, 1.0):
            title = f"MNIST tanh, {width} units, noise {ratio:g}"
            row(title, attack, mnist, network(width, "tanh"), 8, seeds, noisy(ratio))
    row("MNIST relu, 3136 units, noise 0.1", attack, mnist, network(3136, "relu"), 8, seeds, noisy(0.1))


def sparse(seeds: int) -> None:
    """The largest entries alone."""
    mnist, attack = mnist_small(), preset("stein_exact")
    for share in (0.8, 0.5, 0.3, 0.1):
        title = f"MNIST tanh, 784 units, top {share:.0%}"
        row(title, attack, mnist, network(784, "tanh"), 8, seeds, kept(share))


def deep(seeds: int) -> None:
    """Features that enter the last two linear layers of deeper models."""
    mnist, cifar, attack = mnist_small(), cifar10_small(), preset("stein_exact")
    for title, data, make, size in (
        ("features of LeNet-5, CIFAR-10", cifar, lenet5, 8),
        ("features of LeNet-5 tanh, CIFAR-10", cifar, lambda task: lenet5(task, activation="tanh"), 8),
        ("features of FCN-3, MNIST", mnist, fcn3, 32),
    ):
        row(title, attack, data, make, size, seeds)


def paper(seeds: int) -> None:
    """The published estimator on vectors of length one: its error falls with the root of the units."""
    act, points = activation_layer("square_cube"), list[tuple[float, float]]()
    for count in (10_000, 100_000, 1_000_000):
        errors, started = list[float](), time.process_time()
        for seed in range(FIRST_SEED, FIRST_SEED + max(2, seeds // 2)):
            inputs, units = vectors(act, inputs=32, size=4, count=count, seed=seed)
            found = estimate(units, act, 0.0, inputs=32, size=4, random=generator(seed, "paper"))
            errors.append(float((match_rows(found.inputs, inputs) - inputs).norm(dim=1).mean()))
        mean = sum(errors) / len(errors)
        points.append((math.log(count), math.log(mean)))
        seconds = (time.process_time() - started) / len(errors)
        print(
            f"z^2 + z^3, 32 inputs, B=4, {count:>8} units: relative error {mean:.3f}, {seconds:.1f} CPU s",
            flush=True,
        )
    (left, high), (right, low) = points[0], points[-1]
    print(f"slope of the logarithms {(low - high) / (right - left):.2f}, theory -0.5", flush=True)


def cost(seeds: int) -> None:
    """Time and memory of the published estimator at the size of CIFAR-10, in a process of its own."""
    for inputs, count in ((784, 100_000), (784, 1_000_000), (3072, 1_000_000)):
        program = f"import stein; stein.one_estimate({inputs}, {count})"
        subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parent)


def one_estimate(inputs: int, count: int) -> None:
    """Run one estimate and print its cost."""
    torch.set_num_threads(1)
    act = activation_layer("square_cube")
    true, units = vectors(act, inputs=inputs, size=4, count=count, seed=FIRST_SEED)
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    found = estimate(units, act, 0.0, inputs=inputs, size=4, passes=4, random=generator(0, "cost"))
    error = float((match_rows(found.inputs, true) - true).norm(dim=1).mean())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = time.process_time() - started
    print(
        f"{inputs} inputs, B=4, {count:>8} units: {seconds:6.1f} CPU s, peak {peak / 2**20:.2f} GB "
        f"({before / 2**20:.2f} before), relative error {error:.2f}",
        flush=True,
    )


def vectors(act: nn.Module, *, inputs: int, size: int, count: int, seed: int) -> tuple[torch.Tensor, Units]:
    """Return random unit vectors, and units with their gradients, drawn anew at every pass."""
    random = generator(seed, "vectors")
    rows = torch.randn(size, inputs, generator=random, dtype=torch.float64)
    rows = rows / rows.norm(dim=1, keepdim=True)
    levels = torch.sign(torch.randn(size, generator=random)) * (0.5 + torch.rand(size, generator=random))
    chunk = max(1, 2**23 // inputs)

    def units() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        drawn = generator(seed, "units")
        for begin in range(0, count, chunk):
            weights = torch.randn(min(chunk, count - begin), inputs, generator=drawn)
            yield weights, act(weights @ rows.T.float()) @ levels

    return rows, units


def tensors(seeds: int) -> None:
    """Simultaneous diagonalisation and least squares against tensorly's parafac, on equal noisy tensors."""
    for size in (4, 8, 16):
        for level in (0.0, 0.01, 0.1):
            ours, theirs, times = list[float](), list[float](), [0.0, 0.0]
            for seed in range(FIRST_SEED, FIRST_SEED + seeds):
                random = generator(seed, "tensors")
                columns = torch.randn(size, size, generator=random, dtype=torch.float64)
                columns = columns / columns.norm(dim=0)
                weights = torch.sign(torch.randn(size, generator=random, dtype=torch.float64))
                tensor = (powers(columns, 3) @ weights).view(size, size, size)
                noise = torch.randn(tensor.shape, generator=random, dtype=torch.float64)
                noise = sum(noise.permute(order) for order in itertools.permutations(range(3)))
                tensor = tensor + level * noise * tensor.norm() / noise.norm()
                stack, started = tensor.permute(2, 0, 1), time.process_time()
                found = least_squares(stack, diagonalise(stack, None, random), 150)
                between = time.process_time()
                rival = parafac_columns(tensor, random)
                times[0] += between - started
                times[1] += time.process_time() - between
                ours.append(_apart(found, columns))
                theirs.append(min((_apart(one, columns) for one in rival), default=1.0))
            median = seeds // 2
            print(
                f"{size} vectors, noise {level:<5g} median error ours {sorted(ours)[median]:.1e}, "
                f"parafac {sorted(theirs)[median]:.1e}; CPU ratio {times[0] / max(times[1], 1e-9):.2f}",
                flush=True,
            )


def _apart(found: torch.Tensor, columns: torch.Tensor) -> float:
    """Return the mean distance of unit vectors from the true ones, in the best order and sign."""
    return float((match_rows(torch.cat([found, -found], dim=1).T, columns.T) - columns.T).norm(dim=1).mean())


SECTIONS: dict[str, Callable[[int], None]] = {
    section.__name__: section
    for section in (bars, activations, batches, noise, sparse, deep, paper, cost, tensors)
}


def main(arguments: Sequence[str] | None = None) -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seeds", type=int, default=10)
    options.add_argument("--only", nargs="*", choices=SECTIONS, default=list(SECTIONS))
    chosen = options.parse_args(arguments)
    torch.set_num_threads(1)
    for name in chosen.only:
        SECTIONS[name](chosen.seeds)


if __name__ == "__main__":
    main()
