"""Keywords of Python as overrides of the config: `rounds=2` is federation.rounds=2."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedsim.config.catalog import GROUPS
from fedsim.config.compose import compose, quoted
from fedsim.core.errors import FedsimError, suggestion


def overrides_of(arguments: Sequence[str], settings: Mapping[str, Any]) -> list[str]:
    """Return overrides as the command line has them.

    A keyword is a key of the config, dotted or not, or a rule of the federation; a dict sets keys within.
    """
    config = compose() if settings else {}
    found = list(arguments)
    for key, value in settings.items():
        if key not in config and "." not in key:
            if key not in config["federation"]:
                known = [str(name) for name in (*config, *config["federation"])]
                raise FedsimError(
                    f"expected a key of the config or a rule of the federation, got {key!r}."
                    f"{suggestion(key, known)}"
                )
            key = f"federation.{key}"
        found += _lines(key, value)
    return found


def _lines(key: str, value: Any) -> list[str]:
    if isinstance(value, Mapping):
        return [line for name, inner in value.items() for line in _lines(f"{key}.{name}", inner)]
    if key in GROUPS and isinstance(value, str):
        return [f"{key}={value}"]  # a name, which Hydra looks up
    return [f"{key}={as_text(key, value)}"]


def as_text(key: str, value: Any) -> str:
    """Return a plain value as overrides write it: Hydra's grammar is not JSON's."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {as_text(key, inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(as_text(key, inner) for inner in value) + "]"
    if isinstance(value, str):
        return quoted(value)
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return json.dumps(value)
    raise FedsimError(
        f"{key}: expected plain values, got {type(value).__name__} {value!r}. "
        "Remedy: a yaml's name or module.Class as a string, and its settings as keys."
    )
