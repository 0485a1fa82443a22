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
        self.shared: dict[
            object, tuple[dict[str, set[int]], float]
        ] = {}  # of fixtures that several tests use
        self.tests: dict[str, dict[str, Any]] = {}
        self.outcome = ""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Trace a test with its fixtures, also those that an earlier test had made."""
        self.lines, self.rest = defaultdict(set), {}
        self.outcome = "passed"
        earlier = dict(self.shared)
        started = time.process_time()
        threading.settrace(self._enter)
        sys.settrace(self._enter)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]
            seconds = time.process_time() - started
            for fixtures in item._fixtureinfo.name2fixturedefs.values():  # type: ignore[attr-defined]
                lines, taken = earlier.get(fixtures[-1], ({}, 0.0))
                seconds += taken
                for name, some in lines.items():
                    self.lines[name] |= some
            if self.outcome == "passed":
                self.tests[item.nodeid] = {
                    "seconds": seconds,
                    "lines": {name: sorted(lines) for name, lines in self.lines.items()},
                }

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        """Keep what a fixture of several tests runs: a change to it concerns each of them."""
        if fixturedef.scope == "function":
            return (yield)
        before, self.lines, self.rest = self.lines, defaultdict(set), {}
        started = time.process_time()
        try:
            return (yield)
        finally:
            self.shared[fixturedef] = (dict(self.lines), time.process_time() - started)
            for name, some in self.lines.items():
                before[name] |= some
            self.lines, self.rest = before, {}

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


def place(root: Path, tests: Path) -> Path:
    """Return where the map of a file of tests is kept; another file of tests has another place."""
    name = "-".join(tests.relative_to(root).with_suffix("").parts)
    return root / FOLDER / f"{name}-{_digest(tests)}.json"


def load(root: Path, tests: Path) -> dict[str, dict[str, Any]] | None:
    """Return the kept map of a file of tests, or None where a file that they run has changed since."""
    if not (path := place(root, tests)).exists():
        return None
    kept = json.loads(path.read_text())
    same = all((root / name).exists() and _digest(root / name) == one for name, one in kept["run"].items())
    found: dict[str, dict[str, Any]] = kept["tests"]
    return found if same else None


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def trace(root: Path, tests: Path, folders: Sequence[Path]) -> None:
    """Run the fast tests of a file and keep their map; for a process of its own."""
    tracer = Tracer(root, folders)
    pytest.main(
        [str(tests), "-q", "-m", "not slow", "-p", "no:cacheprovider", "-p", "no:xdist"], plugins=[tracer]
    )
    run = {name for told in tracer.tests.values() for name in told["lines"]}
    kept = {"run": {name: _digest(root / name) for name in sorted(run)}, "tests": tracer.tests}
    path = place(root, tests)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".new").write_text(json.dumps(kept))
    path.with_suffix(".new").rename(path)
