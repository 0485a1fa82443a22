"""Progress bars for rounds, clients and long attacks; nothing at all when the output is no terminal."""

import multiprocessing
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedsim.core.errors import printable

_shown: list[Progress] = []  # the one live display: inner bars join the outer one's


@contextmanager
def bar(label: str, total: int) -> Iterator[Callable[..., None]]:
    """Show a bar while the block runs; call the yielded function with how much is done, and a note."""
    if not _shown and not _at_terminal():  # not asked again: under a display, rich stands in for stderr
        yield lambda done, note="": None
        return
    if not _shown:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        # Whatever else is printed meanwhile passes through this console: as words, too.
        console = Console(stderr=True, markup=False, emoji=False, highlight=False)
        display = Progress(*columns, console=console, transient=True)
        _shown.append(display)
        try:
            with display, bar(label, total) as advance:
                yield advance
        finally:
            _shown.clear()
        return
    display, label = _shown[0], printable(label, keep="")
    task = display.add_task(label, total=total)
    try:
        yield lambda done, note="": display.update(
            task, completed=done, description=f"{label}: {printable(note, keep='')}" if note else label
        )
    finally:
        display.remove_task(task)


def _at_terminal() -> bool:
    """Say whether there is a terminal to draw on: processes of ours would draw over each other's bars."""
    return sys.stderr.isatty() and multiprocessing.parent_process() is None
