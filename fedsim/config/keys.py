"""Every key of the config: its type, default, what is allowed, what it means. Light: reads source, runs none.

A yaml has the default and, often, a comment; the constructor that it names has the type, what its settings
are checked for, and a docstring. Whoever adds a yaml has its keys here without doing anything.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import yaml

from fedsim.config.catalog import GROUPS, config_dir
from fedsim.config.signatures import Signature, allowed, signature
from fedsim.core.yamls import read_yaml

TOP_LEVEL = ("fedsim.config.checks", "fedsim.config.build", "fedsim.config.build_central", "fedsim.lab.grid")
WORDS = {"int": "whole number", "float": "number", "str": "text", "bool": "true or false", "None": "null"}
TYPES = {**WORDS, "list": "list", "dict": "what was chosen, by name", "NoneType": "null or a value"}
SWEEPS = ("hydra/launcher", "hydra/sweeper")


@dataclass(frozen=True, kw_only=True)
class Key:
    """One key, as it is written on the command line."""

    name: str
    type: str
    default: str
    allowed: str  # as an error would say it; empty: what the type admits
    meaning: str


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Where in a yaml a key stands."""

    path: str
    below: str  # the same within the yaml
    signature: Signature | None  # of the nearest target above
    modules: tuple[str, ...]  # where its settings are checked


def top_level_keys() -> list[Key]:
    """Return the keys of conf/config.yaml that belong to no group."""
    text = (config_dir() / "config.yaml").read_text(encoding="utf-8")
    data = {name: value for name, value in read_yaml(text).items() if name != "defaults"}
    return list(_keys(data, _Place(path="", below="", signature=None, modules=TOP_LEVEL), _comments(text)))


def group_keys(group: str, name: str) -> list[Key]:
    """Return the keys of one yaml, by the names that they have once it is chosen."""
    text = (config_dir() / group / f"{name}.yaml").read_text(encoding="utf-8")
    found = re.search(r"^# @package (\S+)", text, re.MULTILINE)
    data = read_yaml(text) or {}
    data.pop("defaults", None)
    prefix = found[1] if found else group.replace("/", ".")
    return list(
        _keys(data, _Place(path=prefix, below="", signature=None, modules=TOP_LEVEL), _comments(text))
    )


def yamls() -> list[tuple[str, str]]:
    """Return group and name of every yaml with settings; experiments have none of their own."""
    folders = [*(group for group in GROUPS if group != "experiment"), *SWEEPS]
    return [(group, path.stem) for group in folders for path in sorted((config_dir() / group).glob("*.yaml"))]


def _keys(node: Any, place: _Place, comments: Mapping[str, str]) -> Iterator[Key]:
    """Walk a yaml from its top."""
    if isinstance(node, dict) and "_target_" in node:
        found = signature(str(node["_target_"]))
        place = replace(place, signature=found, modules=(found.module,))
    for name, value in node.items() if isinstance(node, dict) else enumerate(node):
        if name == "_target_":
            continue
        path, below = (f"{start}.{name}".removeprefix(".") for start in (place.path, place.below))
        inside = replace(place, path=path, below=below)
        parts = _has_parts(value)
        if not (isinstance(value, dict) and value) or "_target_" in value:
            yield _key(value, inside, comments)
        if parts or (isinstance(value, dict) and value):
            yield from _keys(value, inside, comments)


def _key(value: Any, place: _Place, comments: Mapping[str, str]) -> Key:
    target = value.get("_target_") if isinstance(value, dict) else None
    name = place.path.rpartition(".")[2]
    known = place.signature or Signature(module="", summary="", types={}, meanings={})
    own = signature(target).summary if target else ""
    return Key(
        name=place.path,
        type=_in_words(known.types.get(name, "")) or _type_of(value),
        default=str(target).rpartition(".")[2] if target else _as_yaml(value),
        allowed=allowed(place.path, place.modules),
        meaning=comments.get(place.below, "") or known.meanings.get(name, "") or own,
    )


def _comments(text: str) -> dict[str, str]:
    """Return the comment beside every key of a yaml, by its path; items of a list are numbered."""
    found, above = dict[str, str](), list[tuple[int, str]]()
    numbers = dict[int, int]()
    for line in text.splitlines():
        match = re.match(r"( *)(- )?(\w+):[^#]*(?:# (.+))?", line)
        if match is None:
            continue
        indent = len(match[1])
        above = [(column, name) for column, name in above if column < indent]
        if match[2]:
            numbers[indent] = numbers.get(indent, -1) + 1
            above.append((indent, str(numbers[indent])))
            indent += 2
        else:
            numbers = {column: count for column, count in numbers.items() if column < indent}
        if match[4]:
            found[".".join([*(name for _, name in above), match[3]])] = match[4]
        above.append((indent, match[3]))
    return found


def _in_words(annotation: str) -> str:
    if found := re.fullmatch(r"Literal\[(.+)\]", annotation):
        return " or ".join(each.strip("'\"") for each in found[1].split(", "))
    return re.sub(r"\w+", lambda word: WORDS.get(word[0], word[0]), annotation).replace(" | ", " or ")


def _has_parts(value: Any) -> bool:
    """Say whether a list is one of objects to be made, such as priors, rather than of names with settings."""
    return isinstance(value, list) and any(isinstance(item, dict) and "_target_" in item for item in value)


def _type_of(value: Any) -> str:
    return TYPES[type(value).__name__]


def _as_yaml(value: Any) -> str:
    if _has_parts(value):
        return "[" + ", ".join(str(item.get("_target_", item)).rpartition(".")[2] for item in value) + "]"
    return yaml.safe_dump(value, default_flow_style=True, width=10**6).removesuffix("\n...\n").strip()
