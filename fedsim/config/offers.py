"""What a module of a user's offers: classes and functions that a setting may name."""

import importlib
import inspect
from typing import Any, get_type_hints

from torch import nn

from fedsim.config.plugins import LISTED
from fedsim.core.errors import FedsimError, in_words
from fedsim.core.interfaces import Attack, Audit, Behaviour, Defense, Forgery, Metric, Tracker
from fedsim.data.images import Dataset

KINDS: tuple[tuple[str, type], ...] = (
    ("attack", Attack),
    ("defense", Defense),
    ("metric", Metric),
    ("client", Behaviour),
    ("forgery", Forgery),
    ("audit", Audit),
    ("model", nn.Module),
    ("data", Dataset),
    ("tracking", Tracker),
)


def offers(module_name: str) -> list[tuple[str, str]]:
    """Return how each class or function of a module is chosen, and what it says of itself."""
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever somebody else's module does when it is imported
        raise FedsimError(f"{module_name}: cannot be imported ({in_words(error)})") from error
    found = list[tuple[str, str]]()
    for name, value in vars(module).items():
        if getattr(value, "__module__", None) == module_name and (group := _group(value)):
            chosen = f"{module_name}.{name}"
            choice = f"{group}=[{chosen}]" if group in LISTED else f"{group}={chosen}"
            found.append((choice, (inspect.getdoc(value) or "").partition("\n")[0]))
    return sorted(found)


def _group(value: Any) -> str | None:
    """Return the group of a class by what it is, or of a function by what it says that it returns."""
    if inspect.isclass(value):
        return next((group for group, kind in KINDS if issubclass(value, kind)), None)
    if not inspect.isfunction(value):
        return None
    try:
        returned = get_type_hints(value).get("return")
    except Exception:  # hints that cannot be resolved
        return None
    return next((g for g, kind in KINDS if inspect.isclass(returned) and issubclass(returned, kind)), None)
