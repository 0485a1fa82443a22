"""What fedsim asks of every attack, defence, metric, model, data set and yaml, for a plug-in's own tests.

    def test_my_attack() -> None:
        check_attack(MyAttack())

Each function returns nothing, or raises an AssertionError that says what was expected.
"""

import dataclasses
import inspect
import math
from collections.abc import Collection, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor, nn

from fedsim.api.choose import dataset
from fedsim.api.choose import model as model_by_name
from fedsim.api.observe import observation, observe
from fedsim.config.plugins import LISTED
from fedsim.core.interfaces import Attack, Defense, Metric
from fedsim.core.randomness import generator
from fedsim.core.training import batch_gradient, load_weights
from fedsim.core.types import Observation, Reconstruction, Task, Truth
from fedsim.data.blind_batches import Rules
from fedsim.data.images import Dataset
from fedsim.lab.scoring import blind_prior
from fedsim.metrics.baselines import scored

BESIDE_ARGUMENTS = ("_target_", "checkpoint", "share")  # keys of a yaml that its target does not take


def small_data() -> Dataset:
    """Return the small images that attacks and defences are checked on: one channel, 8 x 8, four classes."""
    return dataset("synthetic", shape=[1, 8, 8], num_classes=4)


def small_model(name: str = "mlp", **settings: Any) -> nn.Module:
    """Return a model for small_data."""
    return model_by_name(name, task=small_data().task, **({"width": 40} | settings))


def check_attack(attack: Attack, *, batch_size: int = 6, model: nn.Module | None = None) -> None:
    """Run an attack twice on a gradient of small images: alike, well formed, and nothing else is touched.

    model: one that it works on; a fully connected one unless it is told. See small_model.
    """
    _expect(isinstance(attack, Attack), f"an Attack, got {type(attack).__name__}")
    data, model = small_data(), small_model() if model is None else model
    honest = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    crafted = attack.craft(model, data.task, 1, honest)
    _expect(attack.crafts() or crafted is honest, "crafts() to say so where craft() changes the weights")
    load_weights(model, crafted)
    attack.check(model, data.task)  # or says why not: it must not refuse what run() works on
    images, labels = data.train.batch(torch.arange(batch_size)), data.train.labels[:batch_size]
    gradient, _ = batch_gradient(model, images, labels)
    seen = observation(model, gradient, num_examples=batch_size)
    before = _copies({"sent": seen.sent, "received": seen.received})
    first = attack.run(model, data.task, [seen])
    second = attack.run(model, data.task, [seen])
    for name in ("images", "labels", "class_counts", "class_presence", "embeddings", "probabilities"):
        left, right = getattr(first, name), getattr(second, name)
        _expect(_same(left, right), f"the same {name} from the same observation, whenever it runs")
    _expect(first.trace == second.trace, "the same trace from the same observation")
    _expect(first.residual == second.residual, "the same residual from the same observation")
    after = _copies({"sent": seen.sent, "received": seen.received})
    _expect(all(_same(before[key], after[key]) for key in before), "the observation to stay as it was")
    classes = (data.task.num_classes,)
    for name in ("class_counts", "class_presence"):
        found = getattr(first, name)
        _expect(found is None or found.shape == classes, f"{name} of {classes[0]} classes")
    if first.class_counts is not None:
        _expect(int(first.class_counts.min()) >= 0, "class_counts of at least 0")
    if first.images is not None:
        _expect(first.images.shape[1:] == data.task.input_shape, f"images of shape {data.task.input_shape}")


def check_defense(defense: Defense) -> None:
    """Defend a reply and a whole local round twice: alike by the same seed, well formed, input untouched."""
    _expect(isinstance(defense, Defense), f"a Defense, got {type(defense).__name__}")
    reply = {
        "weight": torch.randn(4, 3, generator=generator(0)),
        "bias": torch.randn(4, generator=generator(1)),
    }
    before = {name: tensor.clone() for name, tensor in reply.items()}
    changed = defense.on_reply(reply, "gradient", generator(2))
    again = defense.on_reply(reply, "gradient", generator(2))
    Observation(round=1, client=0, sent=reply, received=changed, kind="gradient")  # or says what is wrong
    _expect(all(_same(changed[name], again[name]) for name in reply), "the same reply of the same generator")
    _expect(all(_same(before[name], reply[name]) for name in reply), "the reply given to stay as it was")
    if not defense.sums_replies:
        data, model = small_data(), small_model()
        images, labels = data.train.batch(torch.arange(10)), data.train.labels[:10]
        one, two = (observe(model, images, labels, defenses=[defense]).received for _ in range(2))
        _expect(all(_same(one[name], two[name]) for name in one), "the same local round of the same seed")


def check_metric(metric: Metric, name: str | None = None) -> None:
    """Score right, blind, surplus and empty guesses: what is right is best, what is more is not better.

    name: under which it scores.
    """
    _expect(isinstance(metric, Metric), f"a Metric, got {type(metric).__name__}")
    data = dataset("synthetic", shape=[1, 32, 32], num_classes=3, train_size=40, test_size=20)
    images, labels = data.train.batch(torch.arange(4)), torch.tensor([0, 2, 0, 0])  # unlike a blind guess
    rows = torch.rand(4, 3, generator=generator(0))
    truth = Truth(round=1, client=0, images=images, labels=labels, embeddings=rows, probabilities=rows)
    means = torch.stack([rows[labels == c].mean(dim=0) if c in labels else rows[0] for c in range(3)])
    right = Reconstruction(
        images=images,
        labels=labels,
        class_counts=labels.bincount(minlength=3),
        embeddings=means,
        probabilities=means,
    )
    prior = dataclasses.replace(
        blind_prior(
            truth, rules=Rules(), frequencies=(1 / 3,) * 3, public=[data.test.batch(torch.arange(9))]
        ),
        embeddings=[torch.ones(3, 3)],
        probabilities=[torch.ones(3, 3)],
    )
    score = scored(metric, right, truth, prior)
    if score is None:  # one that wants embeddings example by example
        right = dataclasses.replace(right, embeddings=rows, embedding_layer="output")
        prior = dataclasses.replace(prior, embedding_layer="output")
        score = scored(metric, right, truth, prior)
    if score is None:
        raise AssertionError("expected a score of a guess that claims everything")
    _expect(name is None or score.metric == name, f"a score named {name}, got {score.metric}")
    if score.baseline is None:
        raise AssertionError("expected a baseline: what a guess without the gradient gets")
    sign = 1 if metric.highest else -1
    words = f"the truth to score better than blind guesses, got {score.value} and {score.baseline}"
    _expect(sign * score.value > sign * score.baseline, words)
    twice: dict[str, Any] = {key: torch.cat([row, row]) for key, row in _examples_of(right).items()}
    surplus = metric.score(dataclasses.replace(right, **twice), truth)
    better = surplus is not None and sign * surplus.value > sign * score.value
    _expect(not better, "guesses beyond the number of examples not to pay")
    turned = {key: row.flip(0) for key, row in _examples_of(right).items()}
    again = metric.score(dataclasses.replace(right, **turned), truth)
    same = again is not None and math.isclose(again.value, score.value, rel_tol=1e-4, abs_tol=1e-6)
    _expect(same, "a score that does not depend on the order of guesses")
    _expect(metric.score(Reconstruction(), truth) is None, "None for a guess that claims nothing")


def _examples_of(guess: Reconstruction) -> dict[str, Any]:
    """Return what a guess says example by example."""
    names = ["images", "labels", *(["embeddings"] if guess.embedding_layer else [])]
    return {name: getattr(guess, name) for name in names}


def check_model(name: str, **settings: Any) -> nn.Module:
    """Build a model twice: logits of small colour images, and the same weights of the same seed."""
    task = Task(input_shape=(3, 32, 32), num_classes=7, mean=(0.4,), std=(0.2,))
    model, twin = (model_by_name(name, task=task, **settings) for _ in range(2))
    _expect(not model.training, "a model in evaluation mode")
    shape = tuple(model(torch.rand(2, 3, 32, 32, generator=generator(0))).shape)
    _expect(shape == (2, 7), f"logits of shape (2, 7), got {shape}")
    pairs = zip(model.parameters(), twin.parameters(), strict=True)
    _expect(all(torch.equal(one, two) for one, two in pairs), "the same initialisation of the same seed")
    return model


def check_data(data: Dataset) -> None:
    """Read some images of a data set: float32 in [0, 1], and every class among the labels."""
    _expect(isinstance(data, Dataset), f"a Dataset, got {type(data).__name__}")
    for images in (data.train, data.test):
        batch = images.batch(torch.arange(5))
        _expect(batch.dtype == torch.float32, f"float32 images, got {batch.dtype}")
        _expect(batch.shape == (5, *data.task.input_shape), f"images of shape {data.task.input_shape}")
        _expect(0 <= float(batch.min()) < float(batch.max()) <= 1, "pixels in [0, 1], not all alike")
        _expect(images.labels.dtype == torch.int64, f"int64 labels, got {images.labels.dtype}")
        found = set(images.labels.tolist())
        _expect(found == set(range(data.task.num_classes)), f"labels of all {data.task.num_classes} classes")


def check_yaml(path: Path, *, presets: Collection[str] = ()) -> None:
    """Hold a yaml against its target: every argument, in order, with its default.

    presets: arguments that this yaml is there to set otherwise.
    """
    text, group, name = path.read_text(encoding="utf-8"), path.parent.name, path.stem
    if group in LISTED:
        _expect(text.startswith(f"# @package {group}.{name}\n"), f"{path} to begin with its package")
    config = yaml.safe_load(text)
    given = {key: value for key, value in config.items() if key not in BESIDE_ARGUMENTS}
    parameters = dict(inspect.signature(_target(config)).parameters)
    parameters.pop("task", None)  # which models are called with
    _expect(list(given) == list(parameters), f"{path} to name {list(parameters)}, got {list(given)}")
    for key, parameter in parameters.items():
        _expect(parameter.kind is inspect.Parameter.KEYWORD_ONLY, f"{path}: {key} to be keyword-only")
        if parameter.default is inspect.Parameter.empty or key in presets or given[key] == "${seed}":
            continue
        value = tuple(given[key]) if isinstance(given[key], list) else given[key]
        _expect(value == parameter.default, f"{path}: {key} to be {parameter.default!r}, got {value!r}")


def _target(config: Mapping[str, Any]) -> Any:
    module, _, name = str(config["_target_"]).rpartition(".")
    return getattr(import_module(module), name)


def _copies(groups: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {f"{kind} {name}": t.clone() for kind, group in groups.items() for name, t in group.items()}


def _same(left: Tensor | None, right: Tensor | None) -> bool:
    if left is None or right is None:
        return left is right
    return torch.equal(left, right)


def _expect(holds: bool, expected: str) -> None:
    if not holds:
        raise AssertionError(f"expected {expected}")
