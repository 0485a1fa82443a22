"""Label restoration against its bars: every method, large batches, defenses, trained models, many classes.

    python benchmarks/labels.py [table_one | large_batches | under_defenses | trained_models | many_classes]

Prints one table a question, each beside the figure to meet, and beside the best counts that need no gradient
("blind"). Every figure is the lowest and the highest of five or more initialisations, each the mean over its
batches. Fresh batch each repetition, evaluation mode, normalised inputs, as in Ma et al. (ICLR 2023). CPU
seconds, one thread. About fifteen minutes in all.
"""

import copy
import math
import resource
import sys
import time
from collections.abc import Callable
from statistics import fmean

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsim.attacks.privacy.labels.bias_corrected import BiasCorrected
from fedsim.attacks.privacy.labels.gradinversion import GradInversion
from fedsim.attacks.privacy.labels.idlg import IDLG
from fedsim.attacks.privacy.labels.ilrg import ILRG
from fedsim.attacks.privacy.labels.ilrg_paper import ILRGPaper
from fedsim.attacks.privacy.labels.ilrg_pooled import ILRGPooled
from fedsim.attacks.privacy.labels.ilrg_public import ILRGPublic
from fedsim.attacks.privacy.labels.last_layer import LastLayer, last_layer
from fedsim.attacks.privacy.labels.rlg import RLG
from fedsim.attacks.privacy.labels.rlu import RLU
from fedsim.core.interfaces import Attack, Defense
from fedsim.core.randomness import generator
from fedsim.core.training import batch_gradient
from fedsim.core.types import Observation, Reconstruction, Task, Truth
from fedsim.data.batches import batch_indices
from fedsim.data.blind_batches import Rules
from fedsim.data.cifar10_small import cifar10_small
from fedsim.data.images import Dataset
from fedsim.data.mnist_small import mnist_small
from fedsim.data.public import public_images
from fedsim.defenses.privacy.noise import Noise
from fedsim.defenses.privacy.sparsify import Sparsify
from fedsim.lab.scoring import blind_prior
from fedsim.metrics.baselines import scored
from fedsim.metrics.irec import IRec
from fedsim.metrics.leacc import LeAcc
from fedsim.metrics.lnacc import LnAcc
from fedsim.models.fcn3 import fcn3
from fedsim.models.lenet5 import lenet5

METRICS = {"leacc": LeAcc(), "lnacc": LnAcc(), "irec": IRec()}
PAPER = ILRGPaper()


def silu_lenet5(task: Task) -> nn.Module:
    return lenet5(task, activation="silu")


def observe(model: nn.Module, images: Tensor, labels: Tensor, defense: Defense, seed: int) -> Observation:
    gradient, _ = batch_gradient(model, images, labels)
    sent = {name: p.detach() for name, p in model.named_parameters()}
    received = defense.on_reply(gradient, "gradient", generator(seed, "defense"))
    return Observation(
        round=1, client=0, sent=sent, received=received, kind="gradient", num_examples=len(labels)
    )


Scores = dict[str, list[float]]  # of every attack, and blind, one figure a seed


def score(
    attacks: dict[str, Attack],
    model: nn.Module,
    task: Task,
    seen: Observation,
    metric: str,
    drawn: Rules,
    labels: Tensor,
) -> dict[str, float]:
    """Return every attack's score of one observation, and that of the best counts without it."""
    truth = Truth(round=1, client=0, images=torch.zeros(len(labels), 1, 1, 1), labels=labels)
    prior = blind_prior(truth, rules=drawn, frequencies=(1 / task.num_classes,) * task.num_classes)
    found, blind = dict[str, float](), math.nan
    for name, attack in attacks.items():
        got = scored(METRICS[metric], attack.run(model, task, [seen]), truth, prior)
        found[name], blind = (math.nan, blind) if got is None else (got.value, got.baseline or 0.0)
    return found | {"blind": blind}


def means(scores: list[dict[str, float]]) -> dict[str, float]:
    return {name: fmean(one[name] for one in scores) for name in scores[0]}


def by_name(seeds: list[dict[str, float]]) -> Scores:
    return {name: [seed[name] for seed in seeds] for name in seeds[0]}


def measure(
    attacks: dict[str, Attack],
    data: Dataset,
    make: Callable[[Task], nn.Module],
    size: int,
    *,
    metric: str = "lnacc",
    layout: str = "natural",
    defense: Defense | None = None,
    initialisations: int = 5,
    batches: int = 20,
) -> Scores:
    """Return the mean score of every attack over batches, for each initialisation."""
    seeds = []
    for seed in range(initialisations):
        torch.manual_seed(seed)
        model, scores = make(data.task).eval(), []
        for batch in range(batches):
            indices = batch_indices(
                data.train.labels,
                torch.arange(len(data.train.labels)),
                batch_size=size,
                layout=layout,
                replacement=layout != "natural",
                seed=seed,
                client=0,
                step=batch,
            )
            images, labels = data.train.batch(indices), data.train.labels[indices]
            seen = observe(model, images, labels, defense or Defense(), 1000 * seed + batch)
            scores.append(score(attacks, model, data.task, seen, metric, Rules(labels=layout), labels))
        seeds.append(means(scores))
    return by_name(seeds)


def show(title: str, scores: Scores, bar: str = "") -> None:
    figures = (f"{name} {min(found):.3f}..{max(found):.3f}" for name, found in scores.items())
    print(f"  {title:<34}", "  ".join(figures), f"  [{bar}]" if bar else "", flush=True)


def table_one(mnist: Dataset, cifar: Dataset) -> None:
    print("Batches of 24 (Ma et al., table 1: FCN-3/MNIST iDLG .514, GI 1.000, RLG .932, iLRG 1.000/.994)")
    presence: dict[str, Attack] = {"idlg": IDLG(), "gi": GradInversion(), "rlg": RLG(), "ilrg": ILRG()}
    counts: dict[str, Attack] = {
        "ilrg": ILRG(),
        "paper": PAPER,
        "pooled": ILRGPooled(),
        "bias": BiasCorrected(),
    }
    cases = (("fcn3/mnist", mnist, fcn3, ".97"), ("lenet5/cifar10", cifar, lenet5, ".99"))
    for name, data, make, bar in (*cases, ("lenet5 silu/cifar10", cifar, silu_lenet5, ".99")):
        show(f"{name} LeAcc", measure(presence, data, make, 24, metric="leacc"))
        show(f"{name} LnAcc", measure(counts, data, make, 24), f"ilrg >= {bar}, pooled >= .995")


def large_batches(cifar: Dataset) -> None:
    print("Larger and uneven batches, LeNet-5/CIFAR-10, LnAcc")
    public = ILRGPublic(public=public_images(data=cifar))
    attacks: dict[str, Attack] = {"ilrg": ILRG(), "paper": PAPER, "pooled": ILRGPooled(), "public": public}
    bars = {64: "", 256: "pooled >= .70, public >= .98", 1024: "public >= .95"}
    for size, bar in bars.items():
        show(f"K={size}", measure(attacks, cifar, lenet5, size, batches=10), bar)
    show("one image a class", measure(attacks, cifar, lenet5, 10, layout="one_per_class"), "pooled >= .95")
    for size in (24, 128, 648):
        scores = measure(attacks, cifar, lenet5, size, layout="extreme", batches=5)
        show(f"1 : K-2 : 1, K={size}", scores, "exact")


def under_defenses(cifar: Dataset) -> None:
    print("Under defenses, LeNet-5/CIFAR-10, K=24, LnAcc")
    public = ILRGPublic(public=public_images(data=cifar))
    attacks: dict[str, Attack] = {"ilrg": ILRG(), "pooled": ILRGPooled(), "public": public}
    for name, defense, bar in (
        ("sparsify 10 %", Sparsify(rate=0.1), ">= .98"),
        ("sparsify 40 %", Sparsify(rate=0.4), ">= .85, public >= .90"),
        ("sparsify 80 %", Sparsify(rate=0.8), ""),
        ("noise 1e-3", Noise(sigma=1e-3), ""),
        ("noise 1e-2", Noise(sigma=1e-2), ">= .93, public >= .97"),
        ("noise 3e-2", Noise(sigma=3e-2), ""),
    ):
        show(name, measure(attacks, cifar, lenet5, 24, defense=defense, initialisations=10), bar)


def trained(data: Dataset, make: Callable[[Task], nn.Module], steps: int, seed: int) -> nn.Module:
    """Train centrally: plain SGD, learning rate .05, batches of 64."""
    torch.manual_seed(seed)
    model, random = make(data.task).eval(), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(steps):
        indices = torch.randint(len(data.train.labels), (64,), generator=random)
        loss = functional.cross_entropy(model(data.train.batch(indices)), data.train.labels[indices])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def accuracy(data: Dataset, model: nn.Module) -> float:
    with torch.no_grad():
        logits = model(data.test.batch(torch.arange(len(data.test.labels))))
    return float((logits.argmax(dim=1) == data.test.labels).double().mean())


def iid_batch(data: Dataset, size: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw a batch of all training images alike."""
    indices = torch.randint(len(data.train.labels), (size,), generator=random)
    return data.train.batch(indices), data.train.labels[indices]


def dirichlet_batch(data: Dataset, size: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw a batch whose class shares are Dirichlet(.5)."""
    # torch's Dirichlet takes no generator: gamma(1/2) is half a squared normal.
    shares = torch.randn(data.task.num_classes, generator=random).square()
    wanted = torch.multinomial(shares, size, replacement=True, generator=random)
    pools = [(data.train.labels == label).nonzero()[:, 0] for label in range(data.task.num_classes)]
    picks = [pools[c][torch.randint(len(pools[c]), (1,), generator=random)] for c in wanted.tolist()]
    indices = torch.cat(picks)
    return data.train.batch(indices), data.train.labels[indices]


def local_update(model: nn.Module, batches: list[tuple[Tensor, Tensor]], rate: float) -> Observation:
    sent = {name: p.detach().clone() for name, p in model.named_parameters()}
    local = copy.deepcopy(model)
    for images, labels in batches:
        gradient, _ = batch_gradient(local, images, labels)
        with torch.no_grad():
            for name, parameter in local.named_parameters():
                parameter.sub_(gradient[name], alpha=rate)
    received = {name: p.detach() - sent[name] for name, p in local.named_parameters()}
    return Observation(
        round=1,
        client=0,
        sent=sent,
        received=received,
        kind="update",
        learning_rate=rate,
        local_steps=len(batches),
        num_examples=sum(len(labels) for _, labels in batches),
    )


DIRICHLET = Rules(partition="dirichlet", alpha=0.5, clients=1000)  # so many: class shares are Dirichlet


def trained_models(mnist: Dataset, cifar: Dataset) -> None:
    """Where no figure is above the blind one, label restoration is no better than guessing."""
    print("Trained models, IRec; test accuracy in brackets")
    cases = [
        *(
            ("fcn3/mnist", mnist, fcn3, steps, 1, drawn, 24)
            for steps in (100, 1000)
            for drawn in ("iid", "dir")
        ),
        *(
            ("lenet5/cifar10", cifar, lenet5, steps, 1, drawn, 64)
            for steps in (300, 1000)
            for drawn in ("iid", "dir")
        ),
        *(("lenet5/cifar10", cifar, lenet5, 1000, 10, drawn, 64) for drawn in ("iid", "dir")),
    ]
    for name, data, make, steps, local_steps, drawn, size in cases:
        public, seeds, reached = public_images(data=data), [], []
        attacks: dict[str, Attack] = {
            "ilrg": ILRG(),
            "paper": PAPER,
            "rlu": RLU(public=public),
            "public": ILRGPublic(public=public),
        }
        draw, rules = (iid_batch, Rules()) if drawn == "iid" else (dirichlet_batch, DIRICHLET)
        for seed in range(5):
            model, random = trained(data, make, steps, seed), torch.Generator().manual_seed(seed)
            reached.append(accuracy(data, model))
            scores = []
            for _ in range(10):
                batches = [draw(data, size, random) for _ in range(local_steps)]
                labels, seen = torch.cat([label for _, label in batches]), local_update(model, batches, 0.05)
                scores.append(score(attacks, model, data.task, seen, "irec", rules, labels))
            seeds.append(means(scores))
        title = f"{name} {steps} ({min(reached):.2f}..{max(reached):.2f}), {local_steps} x {size} {drawn}"
        show(title, by_name(seeds))


def head_problem(classes: int, features: int = 512, size: int = 128) -> tuple[nn.Module, Task, Observation]:
    """Return a last layer alone, with the gradient of random non-negative embeddings."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(features, classes))
    images = torch.relu(torch.randn(1, features) + 0.3 * torch.randn(size, features)).view(
        size, 1, 1, features
    )
    seen = observe(model, images, torch.randint(classes, (size,)), Defense(), 0)
    return model, Task(input_shape=(1, 1, features), num_classes=classes), seen


def textbook_counts(layer: LastLayer) -> Tensor:
    """Restore counts the textbook way: a Python loop over classes, then a pseudo-inverse."""
    rows = []
    for gradient, bias_gradient in zip(layer.weight_gradient, layer.bias_gradient, strict=True):
        rows.append(torch.softmax(layer.weight @ (gradient / bias_gradient) + layer.bias, dim=0))
    probabilities, classes = torch.stack(rows), len(rows)
    system = torch.cat([torch.ones(1, classes), probabilities.T - torch.eye(classes)]).double()
    right = torch.cat([torch.ones(1), layer.bias_gradient]).double() * (layer.num_examples or 0)
    return (torch.linalg.pinv(system) @ right).clamp(min=0).round().long()


def cpu_seconds(work: Callable[[], object], repetitions: int) -> float:
    def once() -> float:
        started = time.process_time()
        work()
        return time.process_time() - started

    return min(once() for _ in range(repetitions))


def many_classes() -> None:
    print("Many classes, K=128, 512 features, one restoration")
    model, task, seen = head_problem(1000)
    layer = last_layer(model, task, seen)
    ours = cpu_seconds(lambda: ILRG().run(model, task, [seen]), 7)
    textbook = cpu_seconds(lambda: textbook_counts(layer), 3)
    guess: Reconstruction = ILRG().run(model, task, [seen])
    equal = torch.equal(guess.class_counts, textbook_counts(layer))
    print(f"  C=1000: {ours:.3f} s against {textbook:.3f} s textbook: ratio {textbook / ours:.0f}  [>= 20]")
    print(f"  equal counts: {equal}  [True]")
    for classes in (100, 1000, 10_000):
        model, task, seen = head_problem(classes)
        seconds = cpu_seconds(lambda m=model, t=task, s=seen: ILRG().run(m, t, [s]), 2)
        print(f"  C={classes}: {seconds:.3f} s" + ("  [60]" if classes == 10_000 else ""))
    print(f"  peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB  [4]")


def main() -> None:
    torch.set_num_threads(1)
    mnist, cifar = mnist_small(), cifar10_small()
    parts: dict[str, Callable[[], None]] = {
        "many_classes": many_classes,
        "table_one": lambda: table_one(mnist, cifar),
        "large_batches": lambda: large_batches(cifar),
        "under_defenses": lambda: under_defenses(cifar),
        "trained_models": lambda: trained_models(mnist, cifar),
    }
    for name in sys.argv[1:] or parts:
        parts[name]()


if __name__ == "__main__":
    main()
