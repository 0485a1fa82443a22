"""A forked process for each mutant: Python and torch are imported once, fedsim and the tests anew in each."""

import contextlib
import importlib
import importlib.machinery
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

MEMORY_LIMIT = 6 << 30  # bytes beyond what is in use
SLOWER = 4  # times as long as without a mutant counts as a hang


def preload(root: Path, tests: list[Path]) -> None:
    """Import what the tests import of others, so that no fork has to; nothing of this checkout."""
    read, write = os.pipe()

    def collect() -> int:
        os.close(read)
        pytest.main([*map(str, tests), "-q", "--collect-only", "-p", "no:cacheprovider", "-p", "no:xdist"])
        names = [name for name, module in sys.modules.items() if not _ours(root, module)]
        with os.fdopen(write, "w") as pipe:
            pipe.write("\n".join(names))
        return 0

    child = fork(collect)
    os.close(write)
    with os.fdopen(read) as pipe:
        names = pipe.read().split("\n")
    os.waitpid(child, 0)
    for name in names:
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def _ours(root: Path, module: object) -> bool:
    file = getattr(module, "__file__", None)
    return str(getattr(module, "__name__", "")).startswith("fedsim") or (
        file is not None and os.path.realpath(file).startswith(f"{root}/")
    )


def fork(work: Callable[[], int], *, quiet: bool = True, seconds: float | None = None) -> int:
    """Start work in a process and group of its own; seconds: of the CPU that it may take. Return its id."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    status = 70
    try:
        os.setsid()
        if quiet:
            for stream in (1, 2):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        if seconds is not None:
            whole = int(seconds) + 1
            resource.setrlimit(resource.RLIMIT_CPU, (whole, whole))
            used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            resource.setrlimit(resource.RLIMIT_DATA, (used + MEMORY_LIMIT, used + MEMORY_LIMIT))
        status = work()
    except BaseException:
        status = 71
    finally:
        os._exit(status)


class Chosen:
    """A pytest plugin: only these tests, the fastest first."""

    def __init__(self, seconds: Mapping[str, float]) -> None:
        """Set the tests, with what each takes."""
        self.seconds = seconds

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[Any]) -> None:
        """Choose and order."""
        items[:] = sorted(
            (item for item in items if item.nodeid in self.seconds),
            key=lambda item: (self.seconds[item.nodeid], item.nodeid),
        )


def outcome(path: Path, compiled: Callable[[], CodeType], seconds: Mapping[str, float], root: Path) -> str:
    """Run tests against a file with other code: killed, hung or survived."""
    files = sorted({str(root / name.split("::")[0]) for name in seconds})

    def work() -> int:
        serve(path, compiled())
        arguments = ["-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header"]
        return int(pytest.main([*files, *arguments], plugins=[Chosen(seconds)]))

    limit = 20 + SLOWER * sum(seconds.values())
    child = fork(work, seconds=limit)
    deadline = time.monotonic() + 5 * limit  # on a busy machine
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)  # whoever it left behind, of its own group
            if os.WIFSIGNALED(status):
                return "hung" if os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL) else "killed"
            return "survived" if os.WEXITSTATUS(status) == 0 else "killed"
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hung"


def serve(path: Path, code: CodeType) -> None:
    """Have the import of a file give other code."""
    honest = importlib.machinery.SourceFileLoader.get_code

    def get_code(loader: Any, name: str) -> CodeType | None:
        if os.path.realpath(loader.get_filename(name)) == str(path):
            return code
        return honest(loader, name)

    importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[method-assign,assignment]
