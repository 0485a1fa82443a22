"""Contracts over every yaml: whoever adds one has these tests the moment it exists."""

import dataclasses
import functools
import inspect
import itertools
from importlib import import_module
from pathlib import Path

import pytest
import yaml

import fedsim
from fedsim.config import build
from fedsim.config.catalog import GROUPS, Entry, config_dir, entries
from fedsim.config.compose import Composed, as_text, combinations, compose, composed
from fedsim.config.instances import instance
from fedsim.core.errors import FedsimError
from fedsim.core.yamls import read_yaml
from fedsim.lab.compare import comparison_of
from fedsim.report.settings import settings_of
from fedsim.testing import (
    check_attack,
    check_data,
    check_engine,
    check_metric,
    check_model,
    check_yaml,
    small_data,
    small_model,
    small_set,
)

CONF = Path(__file__).parents[2] / "conf"
PRESETS = {  # (yaml, key): the yaml is there to set this
    *((f"resnet{depth}", "depth") for depth in (34, 50, 101, 152)),
    *((f"vgg{depth}", "depth") for depth in (11, 13)),
    *((f"rouge{kind}", "kind") for kind in ("2", "l")),
    ("exact_categories", "columns"),
    *(("lamp", key) for key in ("priors", "public", "phases", "moves", "surprise")),
    *(("tableak", key) for key in ("parametrisation", "ensemble", "candidates")),
    *((f"{metric}_best6", "best") for metric in ("psnr", "ssim", "lpips")),
    *((name, "priors") for name in ("ig", "ig_joint", "ig_fedavg", "modern", "gradinversion_matching")),
    *((name, key) for name in ("dlg", "idlg_matching") for key in ("restarts", "double")),
    *(("span_matching", key) for key in ("first", "parametrisation", "double")),
    *(("stein_matching", key) for key in ("first", "parametrisation", "double")),
    *(("gauss_newton", key) for key in ("first", "double")),
    ("gradinversion_matching", "candidates"),
    *(("feature_inversion", k) for k in ("features", "features_weight", "priors", "candidates", "ensemble")),
    *((name, "public") for name in ("imprint", "trap_weights", "soliton", "loki", "fishing", "quiet")),
    ("residual_fishing", "public"),
    ("forger", "forgery"),
    ("fedavg", "mode"),
    ("fedavg", "local_steps"),
}
TEXT_ATTACKS, TEXT_MODELS = {"dager", "bag_of_words", "tag", "lamp"}, {"text_encoder", "text_decoder"}
ROW_ATTACKS = {"tableak": "mlp", "row_lookup": "row_mlp"}
ONE_IMAGE = {"rgap", "gauss_newton", "head_peeling"}
FIGURES = {  # beside a run's own metrics
    "run": {
        *("accuracy", "loss", "detection", "false_rejects", "recomputed", "epsilon", "rounds_to_target"),
        *("noticed", "client_epsilon"),
    },
    "game": {
        *(
            "accepted",
            "once",
            "twice",
            "twin",
            "near_l2",
            "near_ssim",
            "near_embedding",
            "error",
            "honest_error",
            "gone",
            "moved",
            "loss",
        ),
        *("area", "correlation", "correlation_within_steps"),
    },
    "calibration": {
        *(
            "parameters",
            "largest l2",
            "mean l2",
            "l2",
            "l2 / d_ref",
            "first step told",
            "false alarms",
            "accuracy",
            "largest difference",
            "accuracy there",
            "smallest p",
            "linf",
            "least linf",
        ),
        *("largest update", "jump", "jump / largest"),
    },
}
LARGE = {"resnet50", "resnet101", "resnet152", "vgg13", "vgg16"}  # like their small sisters, only slower


def names(group: str) -> list[str]:
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def load(group: str, name: str) -> dict[str, object]:
    return yaml.safe_load((CONF / group / f"{name}.yaml").read_text())


def target(config: dict[str, object]) -> object:
    module, _, name = str(config["_target_"]).rpartition(".")
    return getattr(import_module(module), name)


@functools.cache
def experiment(name: str) -> Composed:
    return composed([f"experiment={name}", "name=test"])


@functools.cache
def catalogue(group: str) -> dict[str, Entry]:
    return {entry.name: entry for entry in entries(group)}


EVERY = [(group, name) for group in GROUPS if group != "experiment" for name in names(group)]


@pytest.mark.parametrize(("group", "name"), EVERY)
def test_yaml_names_every_argument_with_its_default(group: str, name: str) -> None:
    check_yaml(CONF / group / f"{name}.yaml", presets=[key for yaml, key in PRESETS if yaml == name])


@pytest.mark.parametrize(("group", "name"), EVERY)
def test_every_entry_has_a_line_in_the_catalogue(group: str, name: str) -> None:
    entry = catalogue(group)[name]
    assert len(entry.summary) > 15
    assert "\n" not in entry.summary


@pytest.mark.parametrize("name", names("experiment"))
def test_every_experiment_composes_and_says_what_to_expect(name: str) -> None:
    found, entry = experiment(name), catalogue("experiment")[name]
    assert entry.run.startswith(f"fedsim experiment={name}")
    assert entry.minutes is not None
    assert found.expected
    assert found.expected == entry.expected  # as light readers see it, and as Hydra does
    assert not {"minutes", "expected"} & set(found.config)  # no settings of a run: replays do not know them
    assert found.kind in ("run", "sweep", "comparison", "game", "calibration")
    assert bool(found.swept) == (found.kind == "sweep" or bool(found.swept and found.kind == "game"))
    assert bool(found.config.comparison) == (found.kind == "comparison")
    if found.swept:
        _, own = combinations([f"experiment={name}"], found.swept)[-1]
        compose(own)


@pytest.mark.parametrize("name", names("experiment"))
def test_what_an_experiment_expects_is_what_its_kind_can_give(name: str) -> None:
    found = experiment(name)
    settings = settings_of(read_yaml(as_text(found.config)))
    cells: list[dict[str, str]] = []
    if found.kind == "comparison":
        chosen = comparison_of([f"experiment={name}"])
        labels = itertools.product(chosen.attacks, chosen.defenses)
        cells = [{"attack": attack.label, "defense": defense.label} for attack, defense in labels]
    for expectation in found.expected:
        figure, where = expectation.figure, {**expectation.where}
        if found.kind in ("run", "sweep", "comparison"):
            assert figure in {*found.config.metric, *FIGURES["run"]}, expectation
            where.pop("round", None)
        else:
            assert figure in FIGURES[found.kind], expectation
        if found.kind in ("run", "sweep"):
            for key, value in where.items():
                listed = found.swept.get(key, str(settings.get(key))).replace("[", "").replace("]", "")
                assert str(value) in listed.split(","), expectation
        elif found.kind == "comparison":
            assert any(expectation.is_about(cell) for cell in cells), expectation
        elif found.kind == "game":
            columns = {"forgery", "game", "step", "unwanted", "claimed"}
            assert where.keys() <= {*columns, "statistic", "cause"}, expectation
            assert where.get("forgery", next(iter(found.config.forgery))) in found.config.forgery, expectation
        else:
            assert where.keys() <= {"study", "case"}, expectation


def parts(node: object) -> list[dict[str, object]]:
    """Every nested part of a config that has a _target_."""
    inner = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    own = [node] if isinstance(node, dict) and "_target_" in node else []
    return own + [part for value in inner for part in parts(value)]


@pytest.mark.parametrize("name", names("attack"))
def test_parts_of_an_attack_take_the_arguments_that_are_named(name: str) -> None:
    for node in parts(load("attack", name)):
        parameters = inspect.signature(target(node)).parameters
        assert set(node) - {"_target_"} <= set(parameters), node["_target_"]


@pytest.mark.parametrize("name", names("attack"))
def test_an_attack_is_repeatable_and_leaves_observations_untouched(name: str) -> None:
    few: dict[str, object] = {"optimiser": {"iterations": 3}} if "optimiser" in load("attack", name) else {}
    if load("attack", name).get("public"):
        few["public"] = {"data": small_data()}
    if name == "next_tokens":
        data = small_set("continued")
        model = fedsim.model("text_decoder", task=data.task, width=64, heads=4)
        check_attack(fedsim.attack(name, **few), batch_size=2, model=model, data=data)
        return
    if name in TEXT_ATTACKS:
        data = small_set("tokens")
        if "public" in few:
            few["public"] = {"data": data}
        model = fedsim.model("text_encoder", task=data.task, width=64)
        check_attack(fedsim.attack(name, **few), batch_size=2, model=model, data=data)
        return
    if name in ROW_ATTACKS:
        data = small_set("row")
        model = fedsim.model(ROW_ATTACKS[name], task=data.task)
        check_attack(fedsim.attack(name, **few), model=model, data=data)
        return
    alone = name in ONE_IMAGE
    model = small_model(activation="tanh") if alone else None
    if name == "fishing":
        model = small_model(depth=2, width=40)
    if name == "residual_fishing":
        model = fedsim.model("resnet18", task=small_data().task).eval()
    check_attack(fedsim.attack(name, **few), batch_size=1 if alone else 6, model=model)


@pytest.mark.parametrize("name", ["inline", "ray"])
def test_an_engine_gives_the_same_bits_as_this_process(name: str) -> None:
    assert {*names("engine")} == {"inline", "ray", "deploy"}  # whose processes e2e/test_deploy.py counts, too
    check_engine(instance(compose([f"engine={name}", "name=test"]).engine, "engine"))


@pytest.mark.parametrize("name", names("model"))
def test_a_model_gives_logits_and_is_seeded(name: str) -> None:
    if name == "huggingface":
        pytest.skip("needs the extra text and a folder: benchmarks/text.py --minilm FOLDER")
    if name in LARGE:
        pytest.skip("same code as its smaller sister, only slower")
    task = small_set("tokens").task if name in TEXT_MODELS else None
    task = dataclasses.replace(small_set("row").task, num_classes=7) if name == "row_mlp" else task
    model = check_model(name, task=task)
    first = next(module for module in model.modules() if not list(module.children()))
    own = {"transformer": "Bytes", "row_mlp": "ParameterList", **dict.fromkeys(TEXT_MODELS, "Embed")}
    assert type(first).__name__ == own.get(name, "Normalize")


@pytest.mark.parametrize(
    "name", ["mnist_small", "cifar10_small", "synthetic", "tabular", "text", "shakespeare_small"]
)
def test_data_are_float_images_in_the_unit_range(name: str) -> None:
    check_data(fedsim.dataset(name))


@pytest.mark.parametrize(
    "name", ["mnist", "fashion_mnist", "cifar10", "cifar100", "imagenet", "adult", "imdb"]
)
def test_missing_files_are_an_error_that_names_the_folder_and_the_remedy(name: str, tmp_path: Path) -> None:
    config = compose([f"data={name}", f"data.root={tmp_path}", "name=test"])
    with pytest.raises(FedsimError, match=rf"{name}.*{tmp_path}.*Remedy"):
        build.experiment(config)


@pytest.mark.parametrize("name", names("metric"))
def test_a_metric_is_a_metric_under_its_own_name(name: str) -> None:
    check_metric(fedsim.metric(name), name)


def test_configs_are_found() -> None:
    assert config_dir().resolve() == CONF.resolve()
