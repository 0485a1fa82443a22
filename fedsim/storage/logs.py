"""The run folder's log.txt."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedsim.core.errors import printable
from fedsim.storage.files import PRIVATE_FILE, writing


class Harmless(logging.Formatter):
    """Words of clients are among what is logged: none of them commands a terminal, or passes for a record."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record's text, its further lines indented."""
        return printable(super().format(record)).replace("\n", "\n    ")


class LogFile(logging.FileHandler):
    """A file for its owner's eyes. One that cannot be written any more must not end what is logged."""

    def __init__(self, path: Path) -> None:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, PRIVATE_FILE))
        super().__init__(path, encoding="utf-8", errors="backslashreplace")

    def handleError(self, record: logging.LogRecord) -> None:
        """Let it go."""


@contextmanager
def logged(folder: Path) -> Iterator[None]:
    """Add what is logged in the block to a run folder's log.txt. Several processes may do so."""
    with writing(folder / "log.txt"):
        handler = LogFile(folder / "log.txt")
    handler.setFormatter(Harmless("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    logging.getLogger("fedsim").setLevel(logging.DEBUG)
    try:
        yield
    finally:
        root.removeHandler(handler)
        handler.close()
