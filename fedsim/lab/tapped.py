"""Replays of folders that a Wiretap filled: the user's own model, the form of its data, and what is known."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf, open_dict

from fedsim.config import build
from fedsim.core.errors import FedsimError
from fedsim.core.types import Observation, Task
from fedsim.data.images import ArrayImages, Dataset
from fedsim.lab.experiment import Experiment
from fedsim.models.foreign import fitted
from fedsim.storage.runfolder import RunFolder

OWN = ("attack", "metric", "threat", "name", "device", "threads", "attackers", "seed", "hydra.run.dir")
PARTS = ("model.", "attack.", "metric.", "threat.")
TASK, TOLD = ("input_shape", "num_classes", "mean", "std"), ("learning_rate", "local_steps", "num_examples")


@dataclass(frozen=True)
class TappedFolder(RunFolder):
    """A tapped folder, with what the attacker is told beside the messages."""

    told: Mapping[str, Any]

    def observation(self, round: int, client: int) -> Observation:
        """Read a saved observation; what the attacker is told goes before what messages say."""
        return dataclasses.replace(super().observation(round, client), **self.told)


def is_tapped(folder: RunFolder) -> bool:
    """Say whether a Wiretap filled this folder."""
    has_config = (folder.path / "config.yaml").is_file()  # its lack is reported where it is needed
    return has_config and folder.kind == "wiretap"


def source_of(replay: RunFolder) -> RunFolder | None:
    """Return the folder that a replay attacks, with what it was told; None: it is no replay."""
    path = replay.source()
    config = build.parse_text(replay.config_text())
    if path is None or "wiretap" not in config:
        return None if path is None else RunFolder(path)
    told: Any = OmegaConf.to_container(config.wiretap.told)
    return TappedFolder(path, told)


def compose_tapped(folder: RunFolder, overrides: Sequence[str]) -> tuple[TappedFolder, DictConfig, Path]:
    """Return the folder to read from, the config of its replay, and the run folder to use."""
    noted: Any = OmegaConf.to_container(build.parse_text(folder.config_text()).wiretap)
    given = build.parsed(overrides)
    asked = {str(override.get_key_element()): override for override in given}
    for key, override in asked.items():
        plain_key = key.lstrip("+~")
        if plain_key not in (*OWN, "model", *_settings()) and not plain_key.startswith(PARTS):
            raise FedsimError(
                f"the replay of a tapped folder takes {', '.join(OWN)}, model=module.Class, model.ARGUMENT, "
                f"task.{'|'.join(TASK)} and told.{'|'.join(TOLD)}|batch_norm, got {override.input_line!r}"
            )
    task = {"mean": [0.5], "std": [0.5]} | (noted["task"] or {}) | _under("task", asked)
    path, arguments = _model(noted, asked)
    short = path.rpartition(".")[2]
    own = ("model", "task.", "told.")
    plain = [str(override.input_line) for key, override in asked.items() if not key.startswith(own)]
    composed = build.compose_hydra(
        [f"name='replay_${{choices.attack}}_{short}_tapped'", "federation=fedavg", *plain]
    )
    told = _checked_told(_under("told", asked))
    source = TappedFolder(folder.path, told)
    places = source.observed() or [(1, 0)]
    size = {"clients": len({client for _, client in places}), "rounds": max(round for round, _ in places)}
    with open_dict(composed):
        target = "fedsim.models.foreign.user_model"
        composed.data = {"_target_": "fedsim.lab.tapped.tapped_data"} | _checked_task(task)
        composed.model = {"_target_": target, "name": path, "arguments": arguments}
        composed.federation.update({**size, "local_steps": 1, "disclose": []})
        composed.choices.update({"data": "tapped", "model": path})
        composed.wiretap = noted | {"told": told}
        run_folder = Path(composed.hydra.run.dir)
    return source, build.plain(composed), run_folder


def _settings() -> tuple[str, ...]:
    return (*(f"task.{name}" for name in TASK), *(f"told.{name}" for name in (*TOLD, "batch_norm")))


def _under(group: str, asked: Mapping[str, Override]) -> dict[str, Any]:
    """Return the values of the overrides group.NAME=VALUE."""
    start = f"{group}."
    return {
        key.removeprefix(start): override.value() for key, override in asked.items() if key.startswith(start)
    }


def _model(noted: Mapping[str, Any], asked: Mapping[str, Override]) -> tuple[str, dict[str, Any]]:
    """Return the model's import path and its arguments."""
    path = asked["model"].value() if "model" in asked else noted["model"]
    if not isinstance(path, str):
        raise FedsimError("model: the Wiretap was told none. Remedy: model=my_package.module.Class.")
    return path, _under("model", asked)


def _checked_task(task: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a Task is made of, or say what is missing."""
    for name, example in (("input_shape", "[3,32,32]"), ("num_classes", "10")):
        if task.get(name) is None:
            raise FedsimError(f"task.{name}: the Wiretap was not told. Remedy: task.{name}={example}.")
    shape, classes = task["input_shape"], task["num_classes"]
    if not isinstance(shape, list) or len(shape) != 3 or not all(_is_count(side) for side in shape):
        raise FedsimError(f"task.input_shape: expected [channels,height,width], got {shape!r}")
    if not _is_count(classes):
        raise FedsimError(f"task.num_classes: expected a whole number, got {classes!r}")
    values = {name: task[name] if isinstance(task[name], list) else [task[name]] for name in ("mean", "std")}
    for name, numbers in values.items():
        if not numbers or not all(isinstance(n, int | float) and not isinstance(n, bool) for n in numbers):
            raise FedsimError(f"task.{name}: expected a number for each channel, got {task[name]!r}")
    return {"input_shape": shape, "num_classes": classes} | values


def _checked_told(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the attacker is told, if it makes sense."""
    for name, value in told.items():
        number = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
        if name == "batch_norm" and value not in ("eval", "train"):
            raise FedsimError(f"told.batch_norm: expected eval or train, got {value!r}")
        if name == "learning_rate" and not number:
            raise FedsimError(f"told.learning_rate: expected a positive number, got {value!r}")
        if name in ("local_steps", "num_examples") and not _is_count(value):
            raise FedsimError(f"told.{name}: expected a whole number of at least 1, got {value!r}")
    return dict(told)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def tapped_data(
    *, input_shape: Sequence[int], num_classes: int, mean: Sequence[float], std: Sequence[float]
) -> Dataset:
    """The form of a tapped app's data, without the data."""
    channels, height, width = input_shape
    nothing = ArrayImages(
        pixels=torch.zeros(0, *input_shape, dtype=torch.uint8), labels=torch.zeros(0, dtype=torch.int64)
    )
    task = Task(
        input_shape=(channels, height, width), num_classes=num_classes, mean=tuple(mean), std=tuple(std)
    )
    return Dataset(task=task, train=nothing, test=nothing)


def experiment(config: DictConfig, source: TappedFolder) -> Experiment:
    """Build the replay; a model that does not fit the weights is refused before anything is written."""
    made = build.experiment(config)
    for observation in source.observations():
        fitted(made.model, observation)
        break
    return made
