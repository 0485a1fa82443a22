"""Whose code a stored config may name: a run folder from elsewhere must not run what it likes.

`replay` and `resume` build objects from a config.yaml. They build fedsim's own: what a yaml of conf/ names,
and classes of attacks/ and defenses/. Anything else runs only if the user names it on the command line.
"""

import functools
import importlib
import inspect
import re
from collections.abc import Iterator, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from fedsim.config.catalog import config_dir
from fedsim.config.plugins import USER_MODEL
from fedsim.core.errors import FedsimError
from fedsim.core.imports import reach_working_folder
from fedsim.core.yamls import read_yaml

OWN_PACKAGES = ("fedsim.attacks.", "fedsim.defenses.")
TELLING = "fedsim.tracking.mlflow.MLflow"  # ours, but scores and reports leave by it for an address
OWN_FUNCTIONS = (USER_MODEL, "fedsim.data.tapped.tapped_data")  # that no yaml names


def check_trusted(config: DictConfig, arguments: Sequence[str], allowed: Sequence[str] = ()) -> None:
    """Refuse a stored config that names code which is neither ours nor named on the command line."""
    named = {word for argument in arguments for word in re.split(r"[^\w.]+", argument)}
    named |= {"tracking"} if any(word.startswith("tracking.") for word in named) else set()
    for target in _targets(OmegaConf.to_container(config)):
        if target == TELLING and "tracking" not in named and not any(_is_below(target, a) for a in allowed):
            raise FedsimError(
                f"config.yaml wants {target!r} to tell others of the run. Remedy, if you trust the address "
                f"that it has under tracking: allow={target.rpartition('.')[0]}"
            )
        if target not in named and not _is_own(target) and not any(_is_below(target, a) for a in allowed):
            raise FedsimError(
                f"config.yaml wants to run {target!r}, which is not fedsim's own. Remedy, if you know and "
                f"trust it: allow={target.rpartition('.')[0] or target}"
            )


def _targets(node: Any) -> Iterator[str]:
    """Return every callable that a config names."""
    if isinstance(node, dict) and "_target_" in node:
        yield str(node["_target_"])
        if node["_target_"] == USER_MODEL:
            yield str(node.get("import_path"))  # what it calls
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from _targets(child)


def _is_own(target: str) -> bool:
    if target in OWN_FUNCTIONS or target in _named_by_yamls():
        return True
    return target.startswith(OWN_PACKAGES) and inspect.isclass(_defined(target))


def _is_below(target: str, prefix: str) -> bool:
    """Say whether a package or module that the user permits defines this, and does not only import it."""
    if not prefix or not f"{target}.".startswith(f"{prefix}."):
        return False
    reach_working_folder()
    return _defined(target) is not None


def _defined(target: str) -> Any:
    """Return what a module defines under a name; None: nothing, or something from elsewhere."""
    module_name, _, name = target.rpartition(".")
    try:
        found = getattr(importlib.import_module(module_name), name)
    except Exception:  # whatever a module does when it is imported: whoever builds it will say
        return None
    return found if getattr(found, "__module__", None) == module_name else None


@functools.cache
def _named_by_yamls() -> frozenset[str]:
    """Return all targets of conf/."""
    configs = (read_yaml(path.read_text(encoding="utf-8")) for path in config_dir().rglob("*.yaml"))
    return frozenset(target for config in configs for target in _targets(config))
