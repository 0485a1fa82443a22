"""The command line in a process of its own, forked off one that has imported everything and computed nothing.

A new process takes seconds to import. A fork of the tests' own would inherit threads that are not there.
"""

import importlib
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from multiprocessing import get_context
from pathlib import Path

IMPORTED = (
    *(f"fedsim.commands.{name}" for name in ("cli", "run", "compare", "replay", "check", "forge", "prove")),
    *("fedsim.config.build", "fedsim.lab.experiment", "fedsim.report.write", "fedsim.testing"),
    *("matplotlib.backends.backend_svg", "pandas", "scipy.stats", "scipy.optimize", "hydra.compose"),
)
PROCESSES = get_context("forkserver")
PROCESSES.set_forkserver_preload(list(IMPORTED))


def fedsim(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Call `fedsim`."""
    return _forked(("fedsim", *arguments), cwd=cwd, environment=environment)


def script(file: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a user's script."""
    return _forked((file,), cwd=cwd, environment=environment)


def _forked(
    words: tuple[str, ...], *, cwd: Path, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        surroundings = dict(os.environ) | environment
        process = PROCESSES.Process(target=_program, args=(words, str(cwd), surroundings, str(out), str(err)))
        process.start()
        process.join()
        return subprocess.CompletedProcess(words, process.exitcode, out.read_text(), err.read_text())


def _program(words: tuple[str, ...], cwd: str, environment: dict[str, str], out: str, err: str) -> None:
    """Run as a program does: streams, folder and surroundings of its own."""
    for number, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    sys.path.insert(0, cwd)
    sys.argv = list(words)
    try:
        if words[0] == "fedsim":
            main = importlib.import_module("fedsim.__main__")
            sys.modules["__main__"] = main  # what a process that is spawned from here imports
            main.main()
        else:
            runpy.run_path(words[0], run_name="__main__")
    except Exception:
        traceback.print_exc()
        sys.exit(1)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
