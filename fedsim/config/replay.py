"""The config of a replay: what was played, but for the attack, the metrics and what the attacker knows."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override, OverrideType
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from fedsim.config.compose import (
    Composed,
    compose_hydra,
    composed,
    key,
    note_asked,
    parse_text,
    parsed,
    plain,
)
from fedsim.config.plugins import USER_MODEL
from fedsim.core.errors import FedsimError
from fedsim.core.settings import listed, number, one_of, whole

OWN = (
    "attack",
    "metric",
    "threat",
    "defense",
    "tracking",
    "name",
    "device",
    "threads",
    "attackers",
    "hydra.run.dir",
)
KEPT = ("metric", "device", "threads", "attackers", "threat")  # as played, unless named
PLAYED = ("data", "model", "federation", "engine", "defense", "client", "audit", "seed")  # as played
CHOSEN = ("data", "model", "federation", "engine", "audit")
PARTS = ("attack.", "metric.", "threat.", "defense.", "tracking.")
TASK, DISCLOSED = (
    ("input_shape", "num_classes", "mean", "std"),
    ("learning_rate", "local_steps", "num_examples"),
)
TAPPED_KEYS = (
    *(f"task.{name}" for name in TASK),
    *(f"disclosed.{name}" for name in (*DISCLOSED, "batch_norm")),
)


def compose_replay(config_text: str, overrides: Sequence[str]) -> Composed:
    """Take a run's config, with another attack or metrics if asked for."""
    played, given = parse_text(config_text), parsed(overrides)
    for override in given:
        if key(override) not in OWN and not key(override).startswith(PARTS):
            raise FedsimError(
                f"replay takes only {', '.join(OWN)}, got {override.input_line!r}: "
                "the rest is as it was played"
            )
    asked = {key(override).partition(".")[0] for override in given}
    same_attack = not any(key(override) == "attack" for override in given)
    attack = _short(played.choices.attack) if same_attack else "${choices.attack}"
    name = f"name='replay_{attack}_{_short(played.choices.model)}_{_short(played.choices.data)}'"
    own = [override for override in given if same_attack and key(override).startswith("attack.")]
    rest = [str(override.input_line) for override in given if override not in own]
    found = compose_hydra([*(["attack=none"] if same_attack else []), name, *rest])
    with open_dict(found):
        for setting in KEPT:
            if setting not in asked and setting in played:
                found[setting] = played[setting]
        found.choices = OmegaConf.to_container(found.choices, resolve=True)
        if same_attack:  # the run's own settings, but for the keys that are named
            _apply(own, played)
            found.attack, found.choices.attack = played.attack, played.choices.attack
        added = OmegaConf.to_container(found.defense)
        for setting in PLAYED:
            if setting in played:  # an older run may not know it
                found[setting] = played[setting]
        for setting in CHOSEN:
            found.choices[setting] = played.choices.get(setting, "none")
        _add_defenses(found, added)
    config = plain(found)
    note_asked(config, overrides)
    return Composed(
        kind="replay",
        config=config,
        folder=Path(found.hydra.run.dir),
        sweep_folder=Path(found.hydra.sweep.dir),
        swept={},
    )


def _add_defenses(config: DictConfig, added: Any) -> None:
    """Let more defenses act on recorded replies, behind those that were in force."""
    if twice := sorted(added.keys() & (config.defense or {}).keys()):
        raise FedsimError(f"defense: {twice[0]} was in force already. Remedy: another, or a run of its own.")
    if added:
        config.defense, config.added_defenses = {**(config.defense or {}), **added}, len(added)


def _short(name: object) -> str:
    """Return a chosen name as a part of a run's: of module.Class the class."""
    return str(name).rpartition(".")[2]


def _apply(overrides: Sequence[Override], config: DictConfig) -> None:
    """Change single settings of a plain config, as Hydra would."""
    for override in overrides:
        path, kind = key(override), override.type
        there = OmegaConf.select(config, path, default=overrides) is not overrides
        if kind == OverrideType.DEL:
            parent, _, name = path.rpartition(".")
            if not there:
                raise FedsimError(f"{override.input_line}: nothing of that name to delete")
            del OmegaConf.select(config, parent)[name]
        elif not there and kind == OverrideType.CHANGE:
            raise FedsimError(f"{override.input_line}: the attack has no such setting. Remedy: +{path}=...")
        else:
            try:
                OmegaConf.update(config, path, override.value(), force_add=True)
            except OmegaConfBaseException as error:
                raise FedsimError(f"{override.input_line}: {error}") from error


def compose_tapped(config_text: str, overrides: Sequence[str], *, clients: int, rounds: int) -> Composed:
    """Return the config of a replay of what a Wiretap kept of so many clients and rounds."""
    noted: Any = OmegaConf.to_container(parse_text(config_text).wiretap)
    given = {key(override): override for override in parsed(overrides)}
    settable = (*OWN, "seed", "model", *TAPPED_KEYS)
    for name, override in given.items():
        if name not in settable and not name.startswith(("model.", *PARTS)):
            raise FedsimError(
                f"the replay of a tapped folder takes {', '.join((*OWN, 'seed'))}, model=module.Class, "
                f"model.ARGUMENT, task.{'|'.join(TASK)} and disclosed.{'|'.join(DISCLOSED)}|batch_norm, "
                f"got {override.input_line!r}"
            )
    path = given["model"].value() if "model" in given else noted["model"]
    if not isinstance(path, str):
        raise FedsimError("model: the Wiretap was told none. Remedy: model=my_package.module.Class.")
    own = [
        str(o.input_line)
        for name, o in given.items()
        if not name.startswith(("model", "task.", "disclosed."))
    ]
    found = composed([f"name='replay_${{choices.attack}}_{_short(path)}_tapped'", "federation=fedavg", *own])
    config = found.config
    config.data = {"_target_": "fedsim.data.tapped.tapped_data"} | _checked_task(
        {"mean": [0.0], "std": [1.0]} | (noted["task"] or {}) | _under("task", given)
    )
    config.model = {"_target_": USER_MODEL, "import_path": path, "checkpoint": None} | _under("model", given)
    config.federation.update({"clients": clients, "rounds": rounds, "local_steps": 1, "disclose": []})
    config.choices.update({"data": "tapped", "model": path})
    if config.defense:
        config.added_defenses = len(config.defense)
    note_asked(config, overrides)
    config.wiretap = noted | {"disclosed": _checked_disclosed(_under("disclosed", given))}
    return replace(found, config=config)


def _under(group: str, given: Mapping[str, Override]) -> dict[str, Any]:
    """Return the values of the overrides group.NAME=VALUE."""
    start = f"{group}."
    return {name.removeprefix(start): o.value() for name, o in given.items() if name.startswith(start)}


def _checked_task(task: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a Task is made of, or say what is missing."""
    for name, example in (("input_shape", "[3,32,32]"), ("num_classes", "10")):
        if task.get(name) is None:
            raise FedsimError(f"task.{name}: the Wiretap was not told. Remedy: task.{name}={example}.")
    shape, classes, inputs = task["input_shape"], task["num_classes"], task.get("inputs")
    if inputs is None or "vocabulary" not in inputs:  # tokens have a length alone
        listed("task.input_shape", shape, "[channels,height,width]", whole, 3, 3)
    whole("task.num_classes", classes)
    values = {name: task[name] if isinstance(task[name], list) else [task[name]] for name in ("mean", "std")}
    for name, numbers in values.items():
        listed(f"task.{name}", numbers, "a number for each channel", number)
    return {"input_shape": shape, "num_classes": classes, "inputs": inputs} | values


def _checked_disclosed(disclosed: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the attacker is told beside the messages, if it makes sense."""
    for name, value in disclosed.items():
        if name == "batch_norm":
            one_of("disclosed.batch_norm", value, ("eval", "train"))
        elif name == "learning_rate":
            number("disclosed.learning_rate", value, above=0)
        elif name in ("local_steps", "num_examples"):
            whole(f"disclosed.{name}", value)
    return dict(disclosed)
