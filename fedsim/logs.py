"""The run folder's log.txt."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def logged(folder: Path) -> Iterator[None]:
    """Add what is logged in the block to a run folder's log.txt. Several processes may do so."""
    handler = logging.FileHandler(folder / "log.txt", encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    logging.getLogger("fedsim").setLevel(logging.DEBUG)
    try:
        yield
    finally:
        root.removeHandler(handler)
        handler.close()
