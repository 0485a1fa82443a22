"""A disk that fails at a moment of one's choice, under one folder: full, broken, or gone with the power."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

CALLS = ("write", "fsync", "replace", "ftruncate", "unlink", "mkdir")  # all that changes what is on disk


class PowerCut(BaseException):
    """The power is out: from here on nothing is written."""


class FaultyDisk:
    """Lets the n-th call that changes files below a folder fail, and every later one if it stays broken."""

    def __init__(self, monkeypatch: Any, folder: Path, fails_at: int, error: BaseException) -> None:
        self.calls, self._folder, self._at, self._error = 0, str(folder), fails_at, error
        self._stays = not isinstance(error, OSError)  # a full disk may have room again
        for name in CALLS:
            monkeypatch.setattr(os, name, self._counted(name, getattr(os, name)))

    def _counted(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def attempt(what: Any, *rest: Any, **named: Any) -> Any:
            path = os.readlink(f"/proc/self/fd/{what}") if isinstance(what, int) else os.fspath(what)
            if not os.path.abspath(path).startswith(self._folder) or path.endswith("log.txt"):
                return original(what, *rest, **named)
            self.calls += 1
            if self.calls == self._at or (self.calls > self._at and self._stays):
                if name == "write" and self.calls == self._at:
                    original(what, bytes(rest[0])[: len(rest[0]) // 2])  # torn
                raise self._error
            return original(what, *rest, **named)

        return attempt
