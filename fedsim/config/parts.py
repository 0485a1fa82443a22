"""One part by its name, outside of an experiment: an attack, a defense, a metric, a model, a data set."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.singleton import Singleton
from omegaconf import OmegaConf
from torch import nn

from fedsim.config import build
from fedsim.config.catalog import names
from fedsim.config.compose import compose_hydra
from fedsim.config.instances import instance, of_type
from fedsim.config.plugins import LISTED, is_import_path, node_of
from fedsim.core.errors import FedsimError, suggestion
from fedsim.core.imports import imported
from fedsim.core.interfaces import Attack, Audit, Behaviour, Defense, Forgery, Metric, Tracker
from fedsim.data.images import Dataset

KINDS: Mapping[str, type[Any]] = {
    "attack": Attack,
    "defense": Defense,
    "metric": Metric,
    "model": nn.Module,
    "data": Dataset,
    "client": Behaviour,
    "audit": Audit,
    "forgery": Forgery,
    "tracking": Tracker,
}
KEYWORDS = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def part(group: str, name: str | type[Any], *arguments: Any, **settings: Any) -> Any:
    """Build one member of a group: a yaml's name, `module.Class`, or a class, with settings as keywords.

    Settings of a part within are a dict or dotted: `optimiser={"iterations": 3}`, `**{"first.starts": 8}`.
    arguments: of the target beside its settings; a model's task, and the seed of its initialisation.
    """
    if group not in KINDS:
        raise FedsimError(f"expected one of {', '.join(KINDS)}, got {group!r}.{suggestion(group, KINDS)}")
    label = f"{group} {name if isinstance(name, str) else name.__name__}"
    node = _node(group, name)
    for key, value in settings.items():
        _set(node, key.split("."), value, label)
    if missing := [key for key, value in node.items() if isinstance(value, str) and value == "???"]:
        raise FedsimError(f"{label}: expected a {missing[0]}, got none. Remedy: {missing[0]}=...")
    made = OmegaConf.create(node, flags={"allow_objects": True})
    if group == "model":
        return build.seeded_model(made, label, *arguments)
    return of_type(instance(made, group, *arguments), KINDS[group], group)


def parts(group: str, chosen: Sequence[Any]) -> tuple[Any, ...]:
    """Build members of a group that composes from their names, in one go; what is no name stays as it is."""
    plain = list(dict.fromkeys(name for name in chosen if isinstance(name, str) and "." not in name))
    nodes = _composed(group, plain) if plain else {}
    made = {name: OmegaConf.create(node) for name, node in nodes.items()}
    built = list[Any]()
    for given in chosen:
        if isinstance(given, str):
            built.append(instance(made[given], group) if given in made else part(group, given))
        else:
            built.append(of_type(given, KINDS[group], group))
    return tuple(built)


def _node(group: str, name: str | type[Any]) -> dict[str, Any]:
    """Return the plain config of a part, with everything that its yaml says."""
    if not isinstance(name, str):
        return {"_target_": name}
    if is_import_path(name) and name not in names(group):
        return node_of(group, name)
    return _composed(group, [name])[name]


def _composed(group: str, chosen: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Compose some of a group's yamls in one go; return the plain config of each."""
    known = names(group)
    for name in chosen:
        if name not in known:
            raise FedsimError(
                f"{group}: expected one of {', '.join(known)}, or module.Class, got {name!r}."
                + suggestion(name, known)
            )
    before = Singleton.get_state()  # the caller may be an application of Hydra's itself
    try:
        value = f"[{','.join(chosen)}]" if group in LISTED else chosen[0]
        composed = compose_hydra([f"{group}={value}"])
        found: Any = OmegaConf.to_container(composed[group], resolve=True)
    finally:
        Singleton.set_state(before)
    nodes = {name: found[name] if group in LISTED else found for name in chosen}
    for node in nodes.values():
        node.pop("share", None)  # of the clients: a federation's business
    return nodes


def _set(node: dict[str, Any], path: list[str], value: Any, label: str) -> None:
    """Set what a path names; a dict changes a part within key by key, unless it has a target of its own."""
    key, *within = path
    expected = _settings(node, label)
    if expected is not None and key not in expected:
        raise FedsimError(
            f"{label}: expected settings among {', '.join(expected)}, got {key!r}.{suggestion(key, expected)}"
        )
    inner = node.get(key)
    if within:
        if not isinstance(inner, dict):
            raise FedsimError(f"{label}: expected {key} to hold settings, got {inner!r} for {'.'.join(path)}")
        _set(inner, within, value, f"{label}.{key}")
    elif isinstance(value, Mapping) and isinstance(inner, dict) and "_target_" not in value:
        for name, inner_value in value.items():
            _set(inner, str(name).split("."), inner_value, f"{label}.{key}")
    else:
        node[key] = _plain(value)


class _Given:
    """Returns an object that was given: Hydra would copy it, or take a dataclass for a config."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __call__(self) -> object:
        return self.value

    def __deepcopy__(self, memo: object) -> "_Given":
        return self


def _plain(value: Any) -> Any:
    """Return a value as a config can hold it."""
    if isinstance(value, Mapping):
        return {name: inner if name == "_target_" else _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return {"_target_": _Given(value)}


def _settings(node: Mapping[str, Any], label: str) -> list[str] | None:
    """Return the names of a part's settings; None: any name will do."""
    if "_target_" not in node:
        return None
    target = node["_target_"]
    parameters = inspect.signature(imported(target, label) if isinstance(target, str) else target).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return None
    named = [name for name, parameter in parameters.items() if parameter.kind in KEYWORDS and name != "task"]
    return list(dict.fromkeys([*named, *(name for name in node if name != "_target_")]))
