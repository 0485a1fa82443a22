"""What was written to a folder: manifest.txt has a line a write, with SHA-256, offset, length and name.

A further line says that a write came to its end: what is missing or torn then is lost, not unfinished.
"""

import functools
import hashlib
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedsim.core.errors import FedsimError

MANIFEST = "manifest.txt"
REMOVED, DONE = "-", "+"  # in place of a digest
HEADING = b"fedsim manifest "
DAMAGED = "Remedy: a copy of the folder from before, or run again."


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a file, as it was written."""

    digest: str
    offset: int
    length: int

    @property
    def end(self) -> int:
        """Where it ends."""
        return self.offset + self.length


@dataclass(slots=True)
class Listed:
    """What the manifest says of a file: its pieces, and those from before it was last written anew."""

    pieces: list[Piece]
    older: list[Piece] | None = None
    done: bool = False  # a write came to its end: if the file is not there now, it is lost
    ended: bool = False  # so did the last one: if the file is not as it says, it is damaged

    def take(self, piece: Piece) -> None:
        """Add a write: at offset 0 it is the whole file, elsewhere it replaces what lies behind."""
        self.ended = False
        if piece.offset == 0:
            self.pieces, self.older = [piece], self.pieces
            return
        while self.pieces and self.pieces[-1].end > piece.offset:
            self.pieces.pop()
        self.pieces.append(piece)

    def vouched(self, content: bytes) -> int | None:
        """Return how much of a content was written here: all, or all but a torn end; None: something else."""
        found = _vouched(self.pieces, content, torn=not self.ended)
        if found is not None or self.older is None or self.ended:
            return found
        return _vouched(self.older, content, torn=True)


@dataclass
class Manifest:
    """A manifest file as far as it was read; read on when it grows."""

    path: Path
    files: dict[str, Listed] = field(default_factory=dict)
    _heading: bytes = b""  # every manifest has its own: a folder may give its name to another
    _read: int = 0
    _changed: int = -1
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def current(self) -> dict[str, Listed]:
        """Return every listed file."""
        with self._lock:
            try:
                file = open(self.path, "rb")  # noqa: SIM115 (below; opening is what makes NFS look again)
            except FileNotFoundError:
                self.files, self._heading, self._read, self._changed = {}, b"", 0, -1
                return self.files
            with file:
                status = os.fstat(file.fileno())
                if (status.st_mtime_ns, status.st_size) == (self._changed, self._read):
                    return self.files
                heading = file.readline()
                if heading != self._heading or status.st_size < self._read:
                    self.files, self._heading, self._read = {}, heading, len(heading)
                file.seek(self._read)
                new = file.read()
            if not heading.startswith(HEADING) and heading.endswith(b"\n"):
                raise FedsimError(f"{self.path}: not a manifest of fedsim. {DAMAGED}")
            whole = new[: new.rfind(b"\n") + 1]  # the rest is being written, or was when somebody died
            for line in whole.splitlines():
                self._take(line)
            self._read, self._changed = self._read + len(whole), status.st_mtime_ns
            return self.files

    def _take(self, line: bytes) -> None:
        try:
            digest, offset, length, name = line.decode().split(" ", 3)
            piece = Piece(digest, int(offset), int(length))
            fits = digest in (REMOVED, DONE) or len(bytes.fromhex(digest)) == 32
            fits = fits and not Path(name).is_absolute() and ".." not in Path(name).parts
        except ValueError:
            fits = False
        if not fits or piece.offset < 0 or piece.length < 0:
            raise FedsimError(f"{self.path}: not a line of a manifest: {line[:80]!r}. {DAMAGED}")
        if digest == REMOVED:
            self.files.pop(name, None)
        elif digest == DONE:
            if name in self.files:
                self.files[name].done = self.files[name].ended = True
        elif name in self.files:
            self.files[name].take(piece)
        else:
            self.files[name] = Listed([piece])


@functools.lru_cache(maxsize=64)
def manifest_of(root: Path) -> Manifest:
    """Return the manifest of a folder."""
    return Manifest(root / MANIFEST)


def _vouched(pieces: Sequence[Piece], content: bytes, torn: bool) -> int | None:
    last = pieces[-1]
    if torn and 0 < last.offset <= len(content) < last.end:  # an append that was interrupted
        pieces = pieces[:-1]
    elif len(content) != last.end:
        return None
    return pieces[-1].end if pieces and all(holds(piece, content) for piece in pieces) else None


def holds(piece: Piece, content: bytes) -> bool:
    """Say whether a content has a piece as it was written."""
    return hashlib.sha256(memoryview(content)[piece.offset : piece.end]).hexdigest() == piece.digest
