"""Flower's programs as processes of this one: each with a log, and all gone when it ends, however it ends."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path

from fedsim.core.errors import FedsimError

LAST_LINES = 5  # of a log, in an error
GLANCE = 0.5  # seconds between looks at the parent


class Processes:
    """Processes in groups of their own, so that what they start can be ended with them."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        logs.mkdir(parents=True, exist_ok=True)

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start one of Flower's console scripts; its output goes to NAME.log."""
        guarded = [sys.executable, "-m", "fedsim.flower.engines.processes", str(os.getpid()), *command]
        with self.log(name).open("wb") as file:
            self._running[name] = subprocess.Popen(
                guarded,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                start_new_session=True,  # Ctrl-C is for this process alone
            )

    def log(self, name: str) -> Path:
        """Return where a process's output goes."""
        return self.logs / f"{name}.log"

    def check(self, *mortal: str) -> None:
        """Raise if a process has ended, other than these."""
        for name, process in self._running.items():
            if name not in mortal and (status := process.poll()) is not None:
                raise FedsimError(f"Flower's {name} ended with status {status}{self.said(name)}")

    def ended(self, name: str) -> bool:
        """Return whether a process has ended."""
        return self._running[name].poll() is not None

    def said(self, name: str) -> str:
        """Return how a process's log ends, as the end of an error."""
        path = self.log(name)
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n") if path.exists() else []
        last = " | ".join([" ".join(line.split()) for line in lines if line.strip()][-LAST_LINES:])
        return f": {last or 'it said nothing'}. Its log: {path}"

    def stop(self) -> None:
        """End all processes and what they started. Nothing of theirs is worth waiting for."""
        for process in self._running.values():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        for process in self._running.values():
            process.wait()
        self._running.clear()


def main() -> None:
    """Run a console script until it ends, or until the process that started it is gone, even by kill -9."""
    parent, script, *arguments = sys.argv[1:]
    end_with(int(parent))
    sys.argv = [script, *arguments]
    found = next(iter(entry_points(group="console_scripts", name=script)))
    found.load()()


def end_with(parent: int) -> None:
    """Let this process end when the one that started it is gone, and its group with it if it leads one."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(GLANCE)
        if os.getpgrp() == os.getpid():  # a group of its own, as Processes makes it
            os.killpg(0, signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    main()
