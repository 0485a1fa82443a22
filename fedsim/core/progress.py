"""How far rounds, clients and long attacks are: bars in a terminal, now and then a line on stderr elsewhere.

The rule of lines: `rounds 3 of 12` after each round, from the fifth second on and at most one a second; of
all else, such as `attacks 40 of 1,000`, at most one a minute. So what ends within seconds prints nothing.
Only the process that the user started tells, and with FEDSIM_PROGRESS=off not even that one.
"""

import contextlib
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedsim.core.errors import printable

ROUNDS = "rounds"
SETTING = "FEDSIM_PROGRESS"
FIRST_ROUND, NEXT_ROUND, ALL_ELSE = 5.0, 1.0, 60.0  # seconds without a line before one of these
Advance = Callable[..., None]  # takes how much is done, and a note

_shown: "list[Bars | Lines]" = []  # the one display: inner bars join the outer one's


@contextmanager
def bar(label: str, total: int) -> Iterator[Advance]:
    """Tell of the block while it runs; call the yielded function with how much is done, and a note."""
    if _shown:  # the terminal is not asked for again: under bars, rich stands in for stderr
        with _shown[0].count(printable(label, keep=""), total) as advance:
            yield lambda done, note="": advance(done, printable(note, keep=""))
    elif os.environ.get(SETTING) == "off" or multiprocessing.parent_process() is not None:
        yield lambda done, note="": None
    else:
        _shown.append(Bars() if _at_terminal() else Lines())
        try:
            with _shown[0], bar(label, total) as advance:
                yield advance
        finally:
            _shown.clear()


def silence() -> None:
    """Tell nothing from this process nor from those that it starts: another one tells of their work."""
    os.environ[SETTING] = "off"


class Bars(Progress):
    """Bars of rich's, below each other, that leave nothing when they end."""

    def __init__(self) -> None:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        # Whatever else is printed meanwhile passes through this console: as words, too.
        console = Console(stderr=True, markup=False, emoji=False, highlight=False)
        super().__init__(*columns, console=console, transient=True)

    @contextmanager
    def count(self, label: str, total: int) -> Iterator[Advance]:
        """Show one more bar."""
        task = self.add_task(label, total=total)
        try:
            yield lambda done, note: self.update(
                task, completed=done, description=f"{label}: {note}" if note else label
            )
        finally:
            self.remove_task(task)


class Lines(AbstractContextManager["Lines"]):
    """Plain lines on stderr, outer counts before inner ones: `rounds 1 of 9, clients 80 of 1,000`."""

    def __init__(self) -> None:
        self._counts: dict[object, str] = {}  # of all that is under way, the outermost first
        self._quiet_since = time.monotonic()
        self._told = False

    def __exit__(self, *_: object) -> None:
        """Nothing is left to clear."""

    @contextmanager
    def count(self, label: str, total: int) -> Iterator[Advance]:
        """Count one more thing; a line needs progress, not time alone."""
        key, last = object(), 0
        self._counts[key] = f"{label} 0 of {total:,}"

        def advance(done: int, note: str) -> None:
            nonlocal last
            self._counts[key] = f"{label} {done:,} of {total:,}"
            if done > last and self._is_due(label):
                self._print(", ".join(self._counts.values()) + (f": {note}" if note else ""))
            last = done

        try:
            yield advance
        finally:
            del self._counts[key]

    def _is_due(self, label: str) -> bool:
        wait = ALL_ELSE if label != ROUNDS else NEXT_ROUND if self._told else FIRST_ROUND
        return time.monotonic() - self._quiet_since >= wait

    def _print(self, line: str) -> None:
        self._quiet_since, self._told = time.monotonic(), True
        with contextlib.suppress(OSError):  # that nobody reads it is no reason to end a run
            print(line, file=sys.stderr, flush=True)


def _at_terminal() -> bool:
    """Say whether stderr is a terminal that can draw; not one that calls itself dumb."""
    return sys.stderr.isatty() and Console(stderr=True).is_interactive
