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
from dataclasses import dataclass
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
    """A pytest plugin: only these tests, the fastest first; tells the first that fails."""

    def __init__(self, seconds: Mapping[str, float], tell: int) -> None:
        """Set the tests with what each takes, and where to write the name of one."""
        self.seconds, self.tell = seconds, tell

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[Any]) -> None:
        """Choose and order."""
        chosen = [item for item in items if item.nodeid in self.seconds]
        items[:] = sorted(chosen, key=lambda item: by_time(self.seconds)(item.nodeid))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Tell who fails."""
        if report.failed:
            os.write(self.tell, f"{report.nodeid}\n".encode())


def by_time(seconds: Mapping[str, float]) -> Callable[[str], tuple[float, str]]:
    """Return the order in which tests run."""
    return lambda test: (seconds[test], test)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a file with other code fared."""

    end: str  # killed, hung or survived
    killer: str = ""  # the test that failed; none: whoever imports the file


def outcome(
    path: Path, compiled: Callable[[], CodeType], seconds: Mapping[str, float], root: Path
) -> Outcome:
    """Run tests against a file with other code."""
    files = sorted({str(root / name.split("::")[0]) for name in seconds})
    read, write = os.pipe()

    def work() -> int:
        serve(path, compiled())
        arguments = ["-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header"]
        return int(pytest.main([*files, *arguments], plugins=[Chosen(seconds, write)]))

    limit = 20 + SLOWER * sum(seconds.values())
    child = fork(work, seconds=limit)
    os.close(write)
    end = _waited(child, 5 * limit)  # on a busy machine
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # whoever it left behind, of its own group
    os.set_blocking(read, False)  # whoever escaped from the group may hold the other end
    with os.fdopen(read, "rb") as pipe:
        return Outcome(end=end, killer=(pipe.read() or b"").decode().partition("\n")[0])


def _waited(child: int, seconds: float) -> str:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done and os.WIFSIGNALED(status):
            return "hung" if os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL) else "killed"
        if done:
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
