"""Gradient matching beside breaching, in one process: cost of an iteration, and PSNR on the same images.

Needs the extra `peers` (pip install -e '.[peers]'); without it only fedsim and the bare double backward run.
python benchmarks/matching.py [--images 8] [--iterations 2000]
"""

import argparse
import contextlib
import functools
import io
import logging
import statistics
import time
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from hydra.core.global_hydra import GlobalHydra
from torch import Tensor, nn

from fedsim.config import build
from fedsim.config.compose import compose
from fedsim.core.interfaces import Attack
from fedsim.core.training import batch_gradient
from fedsim.core.types import Observation
from fedsim.core.vision import load_torchvision
from fedsim.data.cifar10_small import cifar10_small
from fedsim.data.images import Dataset
from fedsim.metrics.image_matching import peak_signal_to_noise
from fedsim.models.convnet import convnet
from fedsim.models.lenet_zhu import lenet_zhu
from fedsim.models.resnet import resnet

MODELS: dict[str, Callable[..., nn.Module]] = {
    "LeNetZhu": lenet_zhu,
    "ConvNet-16": lambda task: convnet(task, width=16),
    "ResNet-18": resnet,
}


def observe(model: nn.Module, images: Tensor, labels: Tensor) -> Observation:
    return Observation(
        round=1,
        client=0,
        sent={name: p.detach().clone() for name, p in model.named_parameters()},
        received=batch_gradient(model, images, labels)[0],
        kind="gradient",
        num_examples=len(labels),
    )


@functools.cache
def attack_of(name: str, *overrides: str) -> Attack:
    return build.experiment(compose([f"attack={name}", *overrides, "name=benchmark"])).attack


def ours(
    data: Dataset, model: nn.Module, seen: Observation, name: str, iterations: int | None = None
) -> Tensor:
    overrides = [] if iterations is None else [f"attack.optimiser.iterations={iterations}"]
    attack = attack_of(name, *overrides)
    images = attack.run(model, data.task, [seen]).images
    assert images is not None
    return images


def theirs(
    data: Dataset, model: nn.Module, seen: Observation, labels: Tensor, name: str, iterations: int
) -> Tensor:
    """Run breaching's attack of this name; its model sees normalised images, as its attacks expect."""
    load_torchvision()  # its import needs the guard that fedsim has
    import breaching

    GlobalHydra.instance().clear()
    overrides = [f"optim.max_iterations={iterations}", "optim.callback=100000"]
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings(action="ignore"):
        settings = breaching.get_attack_config(name, overrides)
    setup = {"device": torch.device("cpu"), "dtype": torch.float32}
    core = Normalised(model, data)
    attacker = breaching.attacks.prepare_attack(core, nn.CrossEntropyLoss(), settings, setup)
    metadata = SimpleNamespace(
        shape=data.task.input_shape, mean=data.task.mean, std=data.task.std, modality="vision"
    )
    parameters, buffers = [p.detach() for p in model.parameters()], list(core.buffers())
    payload = [{"parameters": parameters, "buffers": buffers, "metadata": metadata}]
    shared = [
        {
            "gradients": [seen.received[key] for key, _ in model.named_parameters()],
            "buffers": None,
            "metadata": {"num_data_points": len(labels), "labels": labels, "local_hyperparams": None},
        }
    ]
    found = attacker.reconstruct(payload, shared, {})[0]["data"]
    return found * core.std + core.mean


class Normalised(nn.Module):
    """The same model behind pixels in [0, 1]: breaching hands over normalised images."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: nn.Module, data: Dataset) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("mean", torch.tensor(data.task.mean).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(data.task.std).view(1, -1, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of normalised images."""
        return self.model(images * self.std + self.mean)


def bare(model: nn.Module, seen: Observation, labels: Tensor, iterations: int) -> None:
    """The double backward and nothing else: no objective, prior, step or record."""
    parameters = tuple(model.parameters())
    target = [seen.received[name] for name, _ in model.named_parameters()]
    images = torch.rand(len(labels), 3, 32, 32, requires_grad=True)
    for _ in range(iterations):
        loss = nn.functional.cross_entropy(model(images), labels)
        gradient = torch.autograd.grad(loss, parameters, create_graph=True)
        torch.autograd.grad(gradient, images, grad_outputs=target)


def cpu(run: Callable[[int], Any], iterations: int) -> float:
    started = time.process_time()
    run(iterations)
    return time.process_time() - started


def costs(data: Dataset, peers: bool) -> None:
    """Print the CPU time of an iteration; methods take turns, so that the machine's moods hit all alike."""
    print("CPU ms an iteration       bare  fedsim ig  ratio  breaching ig  fedsim/breaching")
    for name, make in MODELS.items():
        torch.manual_seed(0)
        model = make(data.task).eval()
        images, labels = data.train.batch(torch.tensor([3])), data.train.labels[[3]]
        seen = observe(model, images, labels)
        number = {"LeNetZhu": 300, "ConvNet-16": 40, "ResNet-18": 10}[name]
        runs: dict[str, Callable[[int], Any]] = {
            "bare": functools.partial(bare, model, seen, labels),
            "ig": functools.partial(ours, data, model, seen, "ig"),
        }
        if peers:
            runs["peer"] = functools.partial(theirs, data, model, seen, labels, "invertinggradients")
        taken: dict[str, list[float]] = {key: [] for key in runs}
        for _ in range(5):
            for key, run in runs.items():  # the set-up cancels in the difference
                taken[key].append((cpu(run, number + 1) - cpu(run, 1)) / number * 1e3)
        each = {key: statistics.median(values) for key, values in taken.items()}
        line = f"{name:22}{each['bare']:8.1f}{each['ig']:11.1f}{each['ig'] / each['bare']:7.2f}"
        if peers:
            line += f"{each['peer']:14.1f}{each['ig'] / each['peer']:18.2f}"
        print(line, flush=True)


def quality(data: Dataset, peers: bool, number: int, iterations: int) -> None:
    print(f"\nPSNR in dB, LeNetZhu, {number} CIFAR-10 images, {iterations} iterations (dlg: 2 x 1200)")
    values: dict[str, list[float]] = {}
    for seed in range(number):
        torch.manual_seed(seed)
        model = lenet_zhu(data.task).eval()
        images, labels = data.train.batch(torch.tensor([37 * seed])), data.train.labels[[37 * seed]]
        seen = observe(model, images, labels)
        found = {
            "modern": ours(data, model, seen, "modern", iterations),
            "dlg": ours(data, model, seen, "dlg"),
            "rgap": ours(data, model, seen, "rgap"),
        }
        if peers:
            found["breaching modern"] = theirs(data, model, seen, labels, "modern", iterations)
        for name, guess in found.items():
            values.setdefault(name, []).append(float(peak_signal_to_noise(guess.clamp(0, 1), images).mean()))
    for name, scores in values.items():
        print(f"{name:18} mean {sum(scores) / len(scores):6.1f}   " + " ".join(f"{v:6.1f}" for v in scores))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--images", type=int, default=8)
    options.add_argument("--iterations", type=int, default=2000)
    chosen = options.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.INFO)
    load_torchvision()
    try:
        import breaching  # noqa: F401

        peers = True
    except ImportError:
        peers = False
        print("breaching is not installed (pip install -e '.[peers]'): fedsim alone")
    data = cifar10_small()
    costs(data, peers)
    quality(data, peers, chosen.images, chosen.iterations)


if __name__ == "__main__":
    main()
