"""Flower, Ray, torch and matplotlib without telemetry, update checks or files in odd places.

The package imports this module before anything else, because they read these settings on import.
What the user has set stays.
"""

import atexit
import functools
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path


@functools.cache
def private_folder() -> Path:
    """Return this process's temporary folder, removed when the process ends, however it ends."""
    folder = Path(tempfile.mkdtemp(prefix="fedsim-"))
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # a forked child must not delete its parent's folder
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    subprocess.Popen(
        [sys.executable, "-I", "-S", str(Path(__file__).with_name("guardian.py")), str(owner), str(folder)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env={},  # nothing of ours: it outlives us
        start_new_session=True,
    )
    return folder


def silence_flower() -> None:
    """Keep Flower's progress messages off the terminal; its errors reach log.txt."""
    logger = logging.getLogger("flwr")
    logger.setLevel(logging.ERROR)
    logger.handlers.clear()
    logger.propagate = True


def keep_caches_together() -> None:
    """Let matplotlib and torch keep what they can make again in one folder, if it can be written.

    For fedsim's own command: in an app that only taps its strategy, these are the app's.
    """
    folder = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "fedsim"
    there = next((path for path in (folder, *folder.parents) if path.exists()), None)
    if there is not None and os.access(there, os.W_OK):
        os.environ.setdefault("MPLCONFIGDIR", str(folder / "matplotlib"))
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder / "torchinductor"))  # not below /tmp


for _name in ("FLWR_TELEMETRY_ENABLED", "RAY_USAGE_STATS_ENABLED", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"):
    os.environ.setdefault(_name, "0")
for _name in ("FLWR_DISABLE_UPDATE_CHECK", "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"):
    os.environ.setdefault(_name, "1")
os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's 15 starves the clients on a busy machine
