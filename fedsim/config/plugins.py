"""What is not fedsim's own: folders of yamls, installed packages, and classes by their import path.

A name on the command line is a yaml's (fedsim's, or of a folder that `--config-dir`, FEDSIM_CONF or an
installed package's entry point `fedsim.plugins` names), or module.Class, with the working folder in reach.
"""

import functools
import importlib.util
import inspect
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from fedsim.core.errors import FedsimError
from fedsim.core.imports import imported

VARIABLE = "FEDSIM_CONF"  # folders of yamls, as in PATH; other processes inherit it
LISTED = ("defense", "client", "metric", "forgery")  # groups of which several are chosen, by name
USER_MODEL = "fedsim.models.foreign.user_model"
IMPORT_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
GIVEN = ("task", "num_classes", "input_shape", "in_channels")  # that the task gives a model's constructor


def config_folders() -> list[Path]:
    """Return the folders of yamls that come before fedsim's own: the user's, then installed packages'."""
    named = [Path(text).expanduser() for text in os.environ.get(VARIABLE, "").split(os.pathsep) if text]
    for folder in named:
        if not folder.is_dir():
            raise FedsimError(f"{folder}: expected a folder of yamls (--config-dir, {VARIABLE}), got none")
    return [folder.resolve() for folder in named] + list(_installed())


def add_config_folder(folder: Path) -> None:
    """Let a folder of yamls come first, in this process and in those that it starts."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = os.pathsep.join([str(folder.resolve()), *([before] if before else [])])


@functools.cache
def _installed() -> tuple[Path, ...]:
    """Return the conf folders of installed packages that are plug-ins; their code is not run for that."""
    found = list[Path]()
    for entry in sorted(entry_points(group="fedsim.plugins"), key=lambda entry: entry.name):
        spec = importlib.util.find_spec(entry.module)
        for place in (spec.submodule_search_locations or ()) if spec else ():
            if (folder := Path(place) / "conf").is_dir():
                found.append(folder)
    return tuple(found)


def is_import_path(name: object) -> bool:
    """Say whether a name is one of a class rather than of a yaml."""
    return isinstance(name, str) and IMPORT_PATH.fullmatch(name) is not None


def node_of(group: str, path: str) -> dict[str, Any]:
    """Return the config of a class: its target, and what its constructor takes with the defaults it has."""
    found = imported(path, group)
    settings = dict(_settings(found, skip=GIVEN if group == "model" else ()))
    if group == "model":
        return {"_target_": USER_MODEL, "import_path": path, "checkpoint": None, **settings}
    shared = {"share": 0.25} if group == "client" and "share" not in settings else {}  # of the clients
    return {"_target_": path, **shared, **settings}


def key_of(group: str, name: str) -> str:
    """Return under which key a chosen name stands: those of listed groups have one each."""
    return f"{group}.{name.rpartition('.')[2]}" if group in LISTED else group


def _settings(found: Any, skip: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield the keywords of a constructor: their defaults, or ??? where there is none."""
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError):  # one of C
        return
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.default is parameter.empty:
            if parameter.name not in skip:
                yield parameter.name, "???"
        elif _is_plain(parameter.default):
            default = parameter.default
            yield parameter.name, list(default) if isinstance(default, tuple) else default


def _is_plain(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    return value is None or isinstance(value, bool | int | float | str)
