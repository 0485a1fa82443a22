"""Which tests run which lines: traced once for each file of tests, and kept in build/mutants."""

import hashlib
import json
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

FOLDER = "build/mutants"


class Tracer:
    """A pytest plugin: notes the lines of some folders that each test runs, and the seconds that it takes."""

    def __init__(self, root: Path, folders: Sequence[Path]) -> None:
        """Set whose lines are of interest."""
        self.root, self.folders = root, tuple(f"{folder.resolve()}/" for folder in folders)
        self.names: dict[str, str | None] = {}
        self.lines: dict[str, set[int]] = defaultdict(set)
        self.rest: dict[CodeType, set[int]] = {}
        self.tests: dict[str, dict[str, Any]] = {}
        self.outcome = ""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Trace a test with its fixtures."""
        self.lines.clear()
        self.rest.clear()
        self.outcome = "passed"
        started = time.process_time()
        threading.settrace(self._enter)
        sys.settrace(self._enter)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]
            if self.outcome == "passed":
                self.tests[item.nodeid] = {
                    "seconds": time.process_time() - started,
                    "lines": {name: sorted(lines) for name, lines in self.lines.items()},
                }

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Leave out whoever fails or is skipped without a mutant."""
        if report.outcome != "passed":
            self.outcome = report.outcome

    def _enter(self, frame: FrameType, event: str, argument: object) -> Any:
        code = frame.f_code
        name = self.names.get(code.co_filename, "")
        if name == "":
            path = os.path.realpath(code.co_filename)
            name = os.path.relpath(path, self.root) if path.startswith(self.folders) else None
            self.names[code.co_filename] = name
        if name is None or code.co_name in ("<module>",):
            return None
        rest = self.rest.get(code)
        if rest is None:
            rest = self.rest[code] = {line for _, _, line in code.co_lines() if line is not None}
        self.lines[name].add(frame.f_lineno)
        rest.discard(frame.f_lineno)
        if not rest:
            return None
        seen = self.lines[name]

        def line(frame: FrameType, event: str, argument: object) -> Any:
            seen.add(frame.f_lineno)
            rest.discard(frame.f_lineno)
            return line if rest else None

        return line


def key(root: Path, tests: Path, folders: Sequence[Path]) -> str:
    """Return what a map of a file of tests depends on, in short."""
    digest = hashlib.sha256(tests.read_bytes())
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            digest.update(path.read_bytes())
    return f"{'-'.join(tests.relative_to(root).with_suffix('').parts)}-{digest.hexdigest()[:16]}"


def load(root: Path, tests: Path, folders: Sequence[Path]) -> dict[str, dict[str, Any]] | None:
    """Return the kept map of a file of tests, or None."""
    path = root / FOLDER / f"{key(root, tests, folders)}.json"
    return json.loads(path.read_text()) if path.exists() else None


def trace(root: Path, tests: Path, folders: Sequence[Path]) -> None:
    """Run the fast tests of a file and keep their map; for a process of its own."""
    tracer = Tracer(root, folders)
    pytest.main(
        [str(tests), "-q", "-m", "not slow", "-p", "no:cacheprovider", "-p", "no:xdist"], plugins=[tracer]
    )
    path = root / FOLDER / f"{key(root, tests, folders)}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".new").write_text(json.dumps(tracer.tests))
    path.with_suffix(".new").rename(path)
