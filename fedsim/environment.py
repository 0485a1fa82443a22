"""Flower, Ray and matplotlib without telemetry, update checks or files outside a private folder.

The package imports this module before anything else, because they read these settings on import.
What the user has set stays.
"""

import atexit
import functools
import logging
import os
import shutil
import sys
import tempfile
from pathlib import Path


@functools.cache
def private_folder() -> Path:
    """Return this process's temporary folder, removed when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="fedsim-"))
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # a forked child must not delete its parent's folder
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


def silence_flower() -> None:
    """Keep Flower's progress messages off the terminal; its errors reach log.txt."""
    logger = logging.getLogger("flwr")
    logger.setLevel(logging.ERROR)
    logger.handlers.clear()
    logger.propagate = True


for _name in ("FLWR_TELEMETRY_ENABLED", "RAY_USAGE_STATS_ENABLED", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"):
    os.environ.setdefault(_name, "0")
for _name in ("FLWR_DISABLE_UPDATE_CHECK", "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"):
    os.environ.setdefault(_name, "1")
os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's 15 starves the clients on a busy machine
for _name, _folder, _reader in (("FLWR_HOME", "flwr", "flwr"), ("MPLCONFIGDIR", "matplotlib", "matplotlib")):
    if _name not in os.environ and _reader not in sys.modules:  # in Flower's own processes its home must stay
        os.environ[_name] = str(private_folder() / _folder)
