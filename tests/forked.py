"""The command line in a process of its own that has imported everything already: a new one takes seconds."""

import importlib
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

from fedsim.commands.cli import main

HERE = Path(__file__).parents[1]


def fedsim(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Call `fedsim` in a fork, with the working folder and the modules that a new process would have."""

    def called() -> None:
        sys.modules["__main__"] = importlib.import_module("fedsim.__main__")  # what a spawned child imports
        sys.argv = ["fedsim", *arguments]
        main()

    return _forked(called, arguments, cwd=cwd, environment=environment)


def script(file: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a user's script in a fork."""
    return _forked(
        lambda: runpy.run_path(file, run_name="__main__") and None, (file,), cwd=cwd, environment=environment
    )


def _forked(
    function: Callable[[], None], arguments: tuple[str, ...], *, cwd: Path, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        sys.stdout.flush()
        sys.stderr.flush()
        if not (child := os.fork()):
            os._exit(_as_a_program(function, cwd, environment, out.fileno(), err.fileno()))
        _, ended = os.waitpid(child, 0)
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(
            arguments, os.waitstatus_to_exitcode(ended), out.read(), err.read()
        )


def _as_a_program(
    function: Callable[[], None], cwd: Path, environment: dict[str, str], out: int, err: int
) -> int:
    """Run a function as a program of its own: its streams, its folder, none of the modules of other tests."""
    status: int | str | None = 1
    try:
        os.dup2(out, 1)
        os.dup2(err, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        os.chdir(cwd)
        os.environ.update(environment)
        _forget_users_modules()
        sys.path.insert(0, "" if sys.path[:1] != [""] else str(cwd))
        try:
            function()
            status = 0
        except SystemExit as end:
            status = end.code
        except BaseException:
            traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return status if isinstance(status, int) else int(status is not None)


def _forget_users_modules() -> None:
    """Drop what tests imported from folders of their own: `mine` is another file each time."""
    kept = (str(HERE), sys.prefix, sys.base_prefix)
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and not file.startswith(kept):
            del sys.modules[name]
