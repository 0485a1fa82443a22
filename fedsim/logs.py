"""The run folder's log.txt."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedsim.errors import printable


class Harmless(logging.Formatter):
    """Words of clients are among what is logged: none of them commands a terminal, or passes for a record."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record's text, its further lines indented."""
        return printable(super().format(record)).replace("\n", "\n    ")


@contextmanager
def logged(folder: Path) -> Iterator[None]:
    """Add what is logged in the block to a run folder's log.txt. Several processes may do so."""
    handler = logging.FileHandler(folder / "log.txt", encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(Harmless("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    logging.getLogger("fedsim").setLevel(logging.DEBUG)
    try:
        yield
    finally:
        root.removeHandler(handler)
        handler.close()
