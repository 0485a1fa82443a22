"""Certificates under attack: cases made to be certified wrongly. Expected of each: no false one.

python benchmarks/certificates.py [near_duplicates noise ...] [--batches 10] [--first 40]

Batches of MNIST on small networks; a certificate is false where no image of the batch is within 1e-3 of it.
"""

import argparse
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import torch
from exact import preset
from exact_family import drawn, sent_by
from torch import Tensor, nn

from fedsim.core.errors import FedsimError
from fedsim.core.types import Observation, Reconstruction, Task, Truth
from fedsim.data.mnist_small import mnist_small
from fedsim.metrics.certified import right_certificates
from fedsim.models.last_linear import last_features
from fedsim.models.mlp import mlp

NEAR = 1e-3
SECONDS = 5  # of a search that may be hopeless
ATTACKS = ("peeling", "first_layer_peeling", "head_peeling", "fedavg_peeling")
CLASSES = 40  # classes that head_peeling sees, so that a batch of 8 has room


@dataclass(frozen=True, kw_only=True)
class Case:
    """One way to mislead an attack: by the batch, the model, or what the client sends and says."""

    batch: Callable[[Tensor, Tensor, torch.Generator], tuple[Tensor, Tensor]] = lambda x, y, _: (x, y)
    model: Callable[[nn.Module], None] = lambda _: None
    said: Callable[[Observation, torch.Generator], Observation] = lambda seen, _: seen


def near_duplicates(distance: float) -> Case:
    """Return a batch in which half of the images are the others, but for noise of this size."""

    def batch(images: Tensor, labels: Tensor, random: torch.Generator) -> tuple[Tensor, Tensor]:
        half = len(images) // 2
        noise = distance * torch.randn(images[:half].shape, generator=random)
        return torch.cat([images[:half], (images[:half] + noise).clamp(0, 1)]), labels

    return Case(batch=batch)


def equal(images: Tensor, labels: Tensor, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return two pairs of equal images, one with equal labels."""
    images, labels = images.clone(), labels.clone()
    images[1], labels[1] = images[0], labels[0]
    images[3], labels[3] = images[2], (labels[2] + 1) % 10
    return images, labels


def sure(factor: float) -> Case:
    """Return a model that is sure of its classes, so that some examples have next to no gradient."""

    def sharpen(model: nn.Module) -> None:
        with torch.no_grad():
            [*model.parameters()][-2].mul_(factor)

    return Case(model=sharpen)


def dead(model: nn.Module) -> None:
    """Switch off two thirds of the first layer's units."""
    with torch.no_grad():
        bias = [*model.parameters()][1]
        bias[: 2 * len(bias) // 3] -= 100.0


def noise(deviation: float) -> Case:
    """Add noise of this size, relative to the largest entry of each tensor."""

    def said(seen: Observation, random: torch.Generator) -> Observation:
        received = {
            name: tensor + deviation * tensor.abs().max() * torch.randn(tensor.shape, generator=random)
            for name, tensor in seen.received.items()
        }
        return dataclasses.replace(seen, received=received)

    return Case(said=said)


def stale(seen: Observation, random: torch.Generator) -> Observation:
    """Send the gradient of other weights than the server believes."""
    sent = {
        name: tensor + 0.01 * tensor.abs().mean() * torch.randn(tensor.shape, generator=random)
        for name, tensor in seen.sent.items()
    }
    return dataclasses.replace(seen, sent=sent)


def claim(**factors: float) -> Case:
    """Say a wrong number of examples or rate."""

    def said(seen: Observation, _: torch.Generator) -> Observation:
        told = {name: getattr(seen, name) for name in factors}
        changed = {name: type(value)(factors[name] * value) for name, value in told.items() if value}
        return dataclasses.replace(seen, **changed)

    return Case(said=said)


CASES = {
    "honest": Case(),
    **{f"near_duplicates_{size:g}": near_duplicates(size) for size in (1e-2, 1e-3, 1e-4, 1e-5)},
    "equal": Case(batch=equal),
    "wrong_labels": Case(batch=lambda x, y, random: (x, torch.randint(10, y.shape, generator=random))),
    **{f"sure_{factor:g}": sure(factor) for factor in (10, 100, 1000)},
    "dead_units": Case(model=dead),
    **{f"noise_{size:g}": noise(size) for size in (1e-7, 1e-6, 1e-5, 1e-4, 1e-3)},
    "stale_weights": Case(said=stale),
    "size_unknown": Case(said=lambda seen, _: dataclasses.replace(seen, num_examples=None)),
    "size_doubled": claim(num_examples=2),
    "size_halved": claim(num_examples=0.5),
    "rate_wrong": claim(learning_rate=1.1),
    "rate_nearly_right": claim(learning_rate=1.001),
}


def certificates(attack: str, case: Case, seed: int) -> tuple[int, int, int]:
    """Attack one batch; return how many examples came back, how many certified, how many of these false."""
    data, random = mnist_small(), torch.Generator().manual_seed(seed)
    task = data.task
    if attack == "head_peeling":
        task = Task(input_shape=task.input_shape, num_classes=CLASSES, mean=task.mean, std=task.std)
    torch.manual_seed(seed)
    model = mlp(task, width=120).eval()
    case.model(model)
    steps = 3 if attack == "fedavg_peeling" else 1
    batches = [case.batch(*drawn(data, 8, 1000 * seed + step), random) for step in range(steps)]
    seen = case.said(sent_by(model, batches, 0.05 if steps > 1 else None), random)
    try:
        guess = preset(attack, f"attack.seconds={SECONDS}").run(model, task, [seen])
    except FedsimError:
        guess = Reconstruction()
    if guess.certified is None:
        return 0, 0, 0
    images, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    features, _ = last_features(model, task.input_shape, weights, images)
    truth = Truth(round=1, client=0, images=images, labels=labels, embeddings=features)
    right = right_certificates(guess, truth, NEAR)
    assert right is not None
    return len(guess.certified), len(right), int((~right).sum())


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("names", nargs="*", help="cases, or beginnings of their names")
    options.add_argument("--batches", type=int, default=10)
    options.add_argument("--first", type=int, default=40, help="first seed")
    chosen = options.parse_args()
    torch.set_num_threads(1)
    whole = torch.zeros(3, dtype=torch.int64)
    for name, case in CASES.items():
        if chosen.names and not any(name.startswith(begun) for begun in chosen.names):
            continue
        for attack in ATTACKS:
            seeds = range(chosen.first, chosen.first + chosen.batches)
            counted = torch.tensor([certificates(attack, case, seed) for seed in seeds]).sum(dim=0)
            whole += counted
            returned, certified, false = counted.tolist()
            print(
                f"{name:22} {attack:20} returned {returned:>4}, certified {certified:>4}, false {false}",
                flush=True,
            )
    print("in all: returned {}, certified {}, false {}".format(*whole.tolist()))


if __name__ == "__main__":
    main()
