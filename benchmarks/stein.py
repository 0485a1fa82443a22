"""The Stein attacks over many seeds: how exact, how far, how fast, under which defences.

python benchmarks/stein.py [--only bars batches ...] [--seeds 10]
"""

import argparse
import copy
import time
from collections.abc import Callable, Sequence

import torch
from torch import nn

from fedsim import build
from fedsim.client import batch_gradient, load_weights
from fedsim.data.cifar10_small import cifar10_small
from fedsim.data.images import Dataset
from fedsim.data.mnist_small import mnist_small
from fedsim.errors import FedsimError
from fedsim.interfaces import Attack
from fedsim.metrics.psnr import PSNR
from fedsim.models.two_layer import two_layer
from fedsim.randomness import generator
from fedsim.types import Observation, Task, Truth, Weights

Change = Callable[[Weights, torch.Generator], Weights]
FIRST_SEED = 2000  # none of these was used while the attack was written


def preset(name: str, *overrides: str) -> Attack:
    return build.experiment(build.compose([f"attack={name}", *overrides, "name=benchmark"])).attack


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
        score = PSNR().score(guess, Truth(round=1, client=0, images=images, labels=labels))
        assert score is not None
        means.append(score.value)
        lowest.append(min(score.per_example))
        sure.append(guess.confidence or 0.0)
    exact, ordered = sum(value >= 100 for value in lowest), sorted(lowest)
    print(
        f"{name:44} B={size:<4} all >= 100 dB: {exact:>2} of {seeds:<3} mean {sum(means) / seeds:6.1f}, "
        f"lowest image {ordered[0]:6.1f} (median {ordered[seeds // 2]:6.1f}), "
        f"residual up to {max(sure, default=0):.0e}, {sum(seconds) / max(1, len(seconds)):6.2f} CPU s",
        flush=True,
    )


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


SECTIONS: dict[str, Callable[[int], None]] = {
    section.__name__: section for section in (bars, activations, batches, noise, sparse)
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
