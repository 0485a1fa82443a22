"""A folder that vouches for its files: each is listed in a manifest, and read only as it was written.

manifest.txt has a line for every write: SHA-256, offset, length, name. A line is written before its file gets
its name, so after a crash a file is as its last line says or as the one before does, and what has no line was
not written here. A further line says that a new file has its name: if it is missing then, it is lost.
Files without a line are neither read nor deleted. Several processes may write at once.
"""

import fcntl
import functools
import hashlib
import os
import secrets
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from fedsim.errors import FedsimError
from fedsim.files import (
    PRIVATE_FILE,
    as_bytes,
    make_folder,
    tensor_bytes,
    tensors_from,
    write_all,
    write_whole,
    writing,
)

MANIFEST = "manifest.txt"
LOCK = "lock"
PARTIAL = ".partial"  # a folder for files that have no name yet
REMOVED, DONE = "-", "+"  # in place of a digest
HEADING = b"fedsim manifest "
DAMAGED = "Remedy: a copy of the folder from before, or run again."
FOREIGN = "Remedy: move it away if fedsim did not write it; if it did, a copy of the folder from before."


class MissingFile(FedsimError):
    """A file that was written, and is not there."""


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
    done: bool = False  # its first write came to its end: if it is not there now, it is lost

    def take(self, piece: Piece) -> None:
        """Add a write: at offset 0 it is the whole file, elsewhere it replaces what lies behind."""
        if piece.offset == 0:
            self.pieces, self.older = [piece], self.pieces
            return
        while self.pieces and self.pieces[-1].end > piece.offset:
            self.pieces.pop()
        self.pieces.append(piece)

    def vouched(self, content: bytes) -> int | None:
        """Return how much of a content was written here: all, or all but a torn end; None: something else."""
        found = _vouched(self.pieces, content)
        return found if found is not None or self.older is None else _vouched(self.older, content)


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
                self.files[name].done = True
        else:
            if name in self.files:
                self.files[name].take(piece)
            else:
                self.files[name] = Listed([piece])


@functools.lru_cache(maxsize=64)
def _manifest(root: Path) -> Manifest:
    return Manifest(root / MANIFEST)


@dataclass(frozen=True)
class Storage:
    """The files of one folder; names are relative to it."""

    root: Path

    def write(self, name: str, content: bytes) -> None:
        """Write a file, whole or not at all."""
        make_folder(self.root)
        path, listed = self._path(name), _manifest(self.root).current().get(name)
        self._list([(hashlib.sha256(content).hexdigest(), 0, len(content), name)])
        write_whole(path, content, self.root / PARTIAL)
        if listed is None or not listed.done:
            self._list([(DONE, 0, 0, name)], sync=False)  # a power cut may take it: the file is there

    def write_text(self, name: str, text: str) -> None:
        """Write a text."""
        self.write(name, as_bytes(text))

    def write_tensors(
        self, name: str, tensors: Mapping[str, Tensor], notes: Mapping[str, Any] | None = None
    ) -> None:
        """Write tensors, and notes as JSON beside them."""
        self.write(name, tensor_bytes(tensors, notes))

    def append(self, name: str, content: bytes) -> None:
        """Add to the end of a file; what an interrupted write left behind is cut off first."""
        path, listed = self._path(name), _manifest(self.root).current().get(name)
        if listed is None or not self._was_written(name, listed):
            self.write(name, content)
            return
        with writing(path):
            file = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
            try:
                end, size = listed.pieces[-1].end, os.fstat(file).st_size
                if size < end:
                    end = listed.pieces[-1].offset
                    os.ftruncate(file, end)
                self._list([(hashlib.sha256(content).hexdigest(), end, len(content), name)])
                os.lseek(file, end, os.SEEK_SET)
                write_all(file, content)
            finally:
                os.close(file)

    def last_append(self, name: str) -> bytes:
        """Return what was last added to a file, and is whole; empty if there is none."""
        path, listed = self._path(name), _manifest(self.root).current().get(name)
        if listed is None:
            return b""
        content = _content(path) or b""
        whole = [piece for piece in listed.pieces[-2:] if piece.end <= len(content)]
        if not whole or not _holds(whole[-1], content):
            raise FedsimError(f"{path} was changed or damaged since it was written. {DAMAGED}")
        return content[whole[-1].offset : whole[-1].end]

    def read(self, name: str) -> bytes | None:
        """Return a file as it was written, or complain; None: it never was."""
        path, before = self._path(name), b""
        while True:
            # In this order: what is written meanwhile has its line already.
            content, listed = _content(path), _manifest(self.root).current().get(name)
            if content is None and listed is None:
                return None
            if listed is None:
                raise FedsimError(f"{path} is not in its folder's manifest. {FOREIGN}")
            if content is None and not listed.done:
                return None  # its first write was interrupted
            if content is None:
                raise MissingFile(f"{path} was written, and is not there. {DAMAGED}")
            if (good := listed.vouched(content)) is not None:
                return content[:good]
            if content == before:  # nobody is writing
                raise FedsimError(f"{path} was changed or damaged since it was written. {DAMAGED}")
            before = content

    def read_text(self, name: str) -> str | None:
        """Read a text."""
        content = self.read(name)
        try:
            return None if content is None else content.decode()
        except UnicodeDecodeError as error:
            raise FedsimError(f"{self.root / name}: expected a text in UTF-8 ({error})") from error

    def read_tensors(self, name: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Read tensors and their notes."""
        content = self.read(name)
        return None if content is None else tensors_from(content, self.root / name)

    def has(self, name: str) -> bool:
        """Say whether a file was written here."""
        return self._was_written(name, _manifest(self.root).current().get(name))

    def stamp(self, name: str) -> str | None:
        """Return what a file's content is known by, for those who remember it."""
        listed = _manifest(self.root).current().get(name)
        return None if listed is None else listed.pieces[-1].digest

    def names(self, start: str = "") -> list[str]:
        """Return the names of the files that were written here and begin like this."""
        listed = [item for item in _manifest(self.root).current().items() if item[0].startswith(start)]
        return [name for name, about in listed if self._was_written(name, about)]

    def _was_written(self, name: str, listed: Listed | None) -> bool:
        return listed is not None and (listed.done or (self.root / name).exists())

    def delete(self, names: Iterable[str]) -> None:
        """Delete files that were written here, and nothing else."""
        listed = _manifest(self.root).current()
        gone = [name for name in names if name in listed]
        for name in gone:
            with writing(path := self._path(name)):
                path.unlink(missing_ok=True)
        if gone:
            self._list((REMOVED, 0, 0, name) for name in gone)

    def clear_partial(self) -> None:
        """Delete what interrupted writes left behind. For whoever has claimed the folder."""
        if (self.root / PARTIAL).is_dir():
            for path in (self.root / PARTIAL).iterdir():
                path.unlink()

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Keep other processes from writing here, too; the claim ends with this process at the latest."""
        make_folder(self.root)
        with writing(self.root / LOCK):
            file = os.open(self.root / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, PRIVATE_FILE)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.clear_partial()
            yield
        except BlockingIOError as error:
            raise FedsimError(
                f"{self.root}: another process is writing here. Remedy: wait for its end, or stop it."
            ) from error
        finally:
            os.close(file)

    def _path(self, name: str) -> Path:
        """Return where a file is, and refuse links: a folder from elsewhere may point anywhere."""
        path = self.root
        for part in Path(name).parts:
            path = path / part
            if path.is_symlink():
                raise FedsimError(f"{path}: expected a file or a folder, got a link. {DAMAGED}")
        return path

    def _list(self, lines: Iterable[tuple[str, int, int, str]], sync: bool = True) -> None:
        """Add lines to the manifest."""
        path = self.root / MANIFEST
        content = "".join(f"{digest} {offset} {length} {name}\n" for digest, offset, length, name in lines)
        with writing(path):
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, PRIVATE_FILE)
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
                end = _whole_lines(file)
                if end == 0:
                    content = f"{HEADING.decode()}{secrets.token_hex(16)}\n{content}"
                os.ftruncate(file, end)
                os.lseek(file, end, os.SEEK_SET)
                try:
                    write_all(file, content.encode(), sync)
                except OSError:
                    os.ftruncate(file, end)
                    raise
            finally:
                os.close(file)


def unlisted(storage: Storage, folder: str, names: Collection[str]) -> list[str]:
    """Return which of these files in a folder have no line in the manifest."""
    listed = _manifest(storage.root).current()
    return [name for name in names if f"{folder}/{name}" not in listed]


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FedsimError(f"{path}: cannot be read ({error.strerror or error}). {DAMAGED}") from error


def _vouched(pieces: Sequence[Piece], content: bytes) -> int | None:
    last = pieces[-1]
    if 0 < last.offset <= len(content) < last.end:  # an append that was interrupted
        pieces = pieces[:-1]
    elif len(content) != last.end:
        return None
    return pieces[-1].end if pieces and all(_holds(piece, content) for piece in pieces) else None


def _holds(piece: Piece, content: bytes) -> bool:
    return hashlib.sha256(memoryview(content)[piece.offset : piece.end]).hexdigest() == piece.digest


def _whole_lines(file: int, longest: int = 8192) -> int:
    """Return where the last whole line of a file ends."""
    size = os.fstat(file).st_size
    tail = os.pread(file, longest, max(0, size - longest))
    return size - len(tail) + tail.rfind(b"\n") + 1
