"""Contracts over every yaml: whoever adds one has these tests the moment it exists."""

import dataclasses
import inspect
from importlib import import_module
from pathlib import Path

import pytest
import torch
import yaml

from fedsim.config import build
from fedsim.config.catalog import GROUPS, config_dir, entries
from fedsim.config.compose import compose
from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Attack, Defense, Metric
from fedsim.core.randomness import generator
from fedsim.core.training import load_weights
from fedsim.core.types import Observation, Task
from fedsim.data.synthetic import synthetic

CONF = Path(__file__).parents[2] / "conf"
PRESETS = {  # (yaml, key): the yaml is there to set this
    *((f"resnet{depth}", "depth") for depth in (34, 50, 101, 152)),
    *((f"vgg{depth}", "depth") for depth in (11, 13)),
    *((f"{metric}_best6", "best") for metric in ("psnr", "ssim", "lpips")),
    *((name, "priors") for name in ("ig", "ig_joint", "ig_fedavg", "modern", "gradinversion_matching")),
    *((name, key) for name in ("dlg", "idlg_matching") for key in ("restarts", "double")),
    *(("span_matching", key) for key in ("first", "parametrisation", "double")),
    *(("stein_matching", key) for key in ("first", "parametrisation", "double")),
    *(("gauss_newton", key) for key in ("first", "double")),
    ("gradinversion_matching", "candidates"),
    ("forger", "forgery"),
    ("fedavg", "mode"),
    ("fedavg", "local_steps"),
}
ONE_IMAGE = {"rgap", "gauss_newton"}
LARGE = {"resnet50", "resnet101", "resnet152", "vgg13", "vgg16"}  # like their small sisters, only slower


def names(group: str) -> list[str]:
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def load(group: str, name: str) -> dict[str, object]:
    return yaml.safe_load((CONF / group / f"{name}.yaml").read_text())


def target(config: dict[str, object]) -> object:
    module, _, name = str(config["_target_"]).rpartition(".")
    return getattr(import_module(module), name)


EVERY = [(group, name) for group in GROUPS if group != "experiment" for name in names(group)]


@pytest.mark.parametrize(("group", "name"), EVERY)
def test_yaml_names_every_argument_with_its_default(group: str, name: str) -> None:
    config = load(group, name)
    signature = inspect.signature(target(config))
    given = {key: value for key, value in config.items() if key not in ("_target_", "checkpoint", "share")}
    expected = [parameter for parameter in signature.parameters if parameter != "task"]
    assert list(given) == expected
    for key, parameter in signature.parameters.items():
        if key == "task":
            continue
        assert parameter.kind == inspect.Parameter.KEYWORD_ONLY, f"{key} should be keyword-only"
        if parameter.default is not inspect.Parameter.empty and (name, key) not in PRESETS:
            value, default = given[key], parameter.default
            if value == "${seed}":
                continue
            assert (tuple(value) if isinstance(value, list) else value) == default, key


@pytest.mark.parametrize("group", ["defense", "client", "forgery", "metric"])
def test_groups_that_compose_put_each_member_under_its_name(group: str) -> None:
    for name in names(group):
        text = (CONF / group / f"{name}.yaml").read_text()
        assert text.startswith(f"# @package {group}.{name}\n")


@pytest.mark.parametrize(("group", "name"), EVERY)
def test_every_entry_has_a_line_in_the_catalogue(group: str, name: str) -> None:
    entry = next(entry for entry in entries(group) if entry.name == name)
    assert len(entry.summary) > 15
    assert "\n" not in entry.summary


@pytest.mark.parametrize("name", names("experiment"))
def test_every_experiment_composes_and_says_what_to_expect(name: str) -> None:
    header = (CONF / "experiment" / f"{name}.yaml").read_text()
    assert "# Expected:" in header
    compose([f"experiment={name}", "name=test"])


def parts(node: object) -> list[dict[str, object]]:
    """Every nested part of a config that has a _target_."""
    inner = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    own = [node] if isinstance(node, dict) and "_target_" in node else []
    return own + [part for value in inner for part in parts(value)]


@pytest.mark.parametrize("name", names("attack"))
def test_parts_of_an_attack_take_the_arguments_that_are_named(name: str) -> None:
    for part in parts(load("attack", name)):
        parameters = inspect.signature(target(part)).parameters
        assert set(part) - {"_target_"} <= set(parameters), part["_target_"]


@pytest.mark.parametrize("name", names("attack"))
def test_an_attack_is_repeatable_and_leaves_observations_untouched(name: str, observe) -> None:
    iterations = ["attack.optimiser.iterations=3"] if "optimiser" in load("attack", name) else []
    small = ["data=synthetic", "data.shape=[1,8,8]", "data.num_classes=4", "model=mlp", "model.width=40"]
    smooth = ["model.activation=tanh"] if name in ONE_IMAGE else []
    config = compose([f"attack={name}", *iterations, *small, *smooth, "name=test"])
    experiment = build.experiment(config)
    assert isinstance(experiment.attack, Attack)
    data = build._dataset(build.OmegaConf.to_yaml(config.data))
    honest = {key: parameter.detach().clone() for key, parameter in experiment.model.named_parameters()}
    load_weights(experiment.model, experiment.attack.craft(experiment.model, experiment.task, 1, honest))
    number = 1 if name in ONE_IMAGE else 6
    seen = observe(experiment.model, data.train.batch(torch.arange(number)), data.train.labels[:number])
    before = {key: tensor.clone() for key, tensor in (*seen.sent.items(), *seen.received.items())}
    first = experiment.attack.run(experiment.model, experiment.task, [seen])
    second = experiment.attack.run(experiment.model, experiment.task, [seen])
    for field in ("images", "class_counts", "class_presence", "embeddings"):
        left, right = getattr(first, field), getattr(second, field)
        assert (left is None) == (right is None)
        assert left is None or torch.equal(left, right)
    assert first.trace == second.trace
    assert first.residual == second.residual
    after = dict([*seen.sent.items(), *seen.received.items()])
    assert all(torch.equal(before[key], after[key]) for key in before)
    classes = experiment.task.num_classes
    if first.class_counts is not None:
        assert first.class_counts.shape == (classes,)
        assert int(first.class_counts.min()) >= 0
    if first.class_presence is not None:
        assert first.class_presence.shape == (classes,)
    if first.images is not None:
        assert first.images.shape[1:] == experiment.task.input_shape


@pytest.mark.parametrize("name", names("defense"))
def test_a_defence_keeps_names_and_shapes_and_its_input(name: str) -> None:
    config = load("defense", name)
    defense = target(config)(**{key: value for key, value in config.items() if key != "_target_"})
    assert isinstance(defense, Defense)
    reply = {
        "weight": torch.randn(4, 3, generator=generator(0)),
        "bias": torch.randn(4, generator=generator(1)),
    }
    before = {key: tensor.clone() for key, tensor in reply.items()}
    changed = defense.on_reply(reply, "gradient", generator(2))
    again = defense.on_reply(reply, "gradient", generator(2))
    assert {key: tensor.shape for key, tensor in changed.items()} == {k: t.shape for k, t in reply.items()}
    assert all(torch.equal(changed[key], again[key]) for key in reply)
    assert all(torch.equal(before[key], reply[key]) for key in reply)
    Observation(round=1, client=0, sent=reply, received=changed, kind="gradient")  # well formed


@pytest.mark.parametrize("name", names("model"))
def test_a_model_gives_logits_and_is_seeded(name: str) -> None:
    if name in LARGE:
        pytest.skip("same code as its smaller sister, only slower")
    task = Task(input_shape=(3, 32, 32), num_classes=7, mean=(0.4,), std=(0.2,))
    config = compose([f"model={name}", "name=test"])
    model = build._model(config, task)
    assert not model.training
    assert model(torch.rand(2, 3, 32, 32)).shape == (2, 7)
    twin = build._model(config, task)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))
    first = next(module for module in model.modules() if not list(module.children()))
    assert type(first).__name__ == ("Bytes" if name == "transformer" else "Normalize")


@pytest.mark.parametrize("name", ["mnist_small", "cifar10_small", "synthetic", "tabular", "text"])
def test_data_are_float_images_in_the_unit_range(name: str) -> None:
    data = build._dataset(build.OmegaConf.to_yaml(compose([f"data={name}", "name=test"]).data))
    for images in (data.train, data.test):
        batch = images.batch(torch.arange(5))
        assert batch.dtype == torch.float32
        assert batch.shape == (5, *data.task.input_shape)
        assert 0 <= float(batch.min()) < float(batch.max()) <= 1
        assert images.labels.dtype == torch.int64
        assert set(images.labels.tolist()) == set(range(data.task.num_classes))


@pytest.mark.parametrize(
    "name", ["mnist", "fashion_mnist", "cifar10", "cifar100", "imagenet", "adult", "imdb"]
)
def test_missing_files_are_an_error_that_names_the_folder_and_the_remedy(name: str, tmp_path: Path) -> None:
    config = compose([f"data={name}", f"data.root={tmp_path}", "name=test"])
    with pytest.raises(FedsimError, match=rf"{name}.*{tmp_path}.*Remedy"):
        build.experiment(config)


@pytest.mark.parametrize("name", names("metric"))
def test_a_metric_is_a_metric_under_its_own_name(name: str) -> None:
    config = load("metric", name)
    metric = target(config)(**{key: value for key, value in config.items() if key != "_target_"})
    assert isinstance(metric, Metric)
    data = synthetic(shape=(1, 32, 32), num_classes=3, train_size=6, test_size=3)
    from fedsim.core.types import Reconstruction, Truth

    images, labels = data.train.batch(torch.arange(4)), data.train.labels[:4]
    rows = torch.rand(4, 3)
    counts = labels.bincount(minlength=3)
    guess = Reconstruction(images=images, class_counts=counts, embeddings=rows[:3], probabilities=rows[:3])
    known = {"embeddings": rows, "probabilities": rows}
    truth = Truth(round=1, client=0, images=images, labels=labels, **known)
    score = metric.score(guess, truth)
    if score is None:  # one that wants embeddings example by example
        score = metric.score(dataclasses.replace(guess, embedding_layer="output"), truth)
    assert score is not None
    assert score.metric == name
    assert score.baseline is not None


def test_configs_are_found() -> None:
    assert config_dir().resolve() == CONF.resolve()
