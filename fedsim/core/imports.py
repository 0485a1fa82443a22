"""Code that is named by its import path: module.Class, with the working folder in reach."""

import importlib
import inspect
import sys
from pathlib import Path
from typing import Any

from fedsim.core.errors import FedsimError, in_words, suggestion


def reach_working_folder() -> None:
    """Let modules of the working folder be imported; last, so that none stands for an installed one."""
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)


def imported(path: str, what: str) -> Any:
    """Import module.Class; what: the setting that names it, for complaints."""
    module_name, _, name = path.rpartition(".")
    reach_working_folder()
    if not module_name:
        raise FedsimError(f"{what}={path}: expected module.Class, got no module")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever somebody else's module does when it is imported
        raise FedsimError(
            f"{what}={path}: {module_name!r} cannot be imported ({in_words(error)}). "
            f"Remedy: module.Class as seen from {Path.cwd()}, or call from the app's folder."
        ) from error
    if not callable(found := getattr(module, name, None)):
        near = suggestion(name, [key for key, value in vars(module).items() if inspect.isclass(value)])
        raise FedsimError(f"{what}={path}: no class {name!r} in {module_name!r}.{near}")
    return found
