"""A folder that vouches for its files: each is listed in its manifest, and read only as it was written.

A line is written to the manifest before its file gets its name, so after a crash a file is as its last line
says or as the one before does. Files without a line are neither read nor deleted. Many processes may write.
"""

import fcntl
import hashlib
import os
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsim.core.errors import FedsimError
from fedsim.storage.files import (
    PRIVATE_FILE,
    as_bytes,
    make_folder,
    write_all,
    write_whole,
    writing,
)
from fedsim.storage.manifest import DAMAGED, DONE, HEADING, MANIFEST, REMOVED, Listed, holds, manifest_of

if TYPE_CHECKING:
    from torch import Tensor

LOCK = "lock"
PARTIAL = ".partial"  # a folder for files that have no name yet
FOREIGN = "Remedy: move it away if fedsim did not write it; if it did, a copy of the folder from before."


class MissingFile(FedsimError):
    """A file that was written, and is not there."""


@dataclass(frozen=True)
class Storage:
    """The files of one folder; names are relative to it."""

    root: Path

    def write(self, name: str, content: bytes) -> None:
        """Write a file, whole or not at all."""
        make_folder(self.root)
        path = self._path(name)
        self._list([(hashlib.sha256(content).hexdigest(), 0, len(content), name)])
        write_whole(path, content, self.root / PARTIAL)
        self._list([(DONE, 0, 0, name)], sync=False)  # a power cut may take it: the file is as it should be

    def write_text(self, name: str, text: str) -> None:
        """Write a text."""
        self.write(name, as_bytes(text))

    def write_tensors(
        self, name: str, tensors: "Mapping[str, Tensor]", notes: Mapping[str, Any] | None = None
    ) -> None:
        """Write tensors, and notes as JSON beside them."""
        from fedsim.storage.tensors import tensor_bytes  # torch: whoever reads tables alone does without

        self.write(name, tensor_bytes(tensors, notes))

    def append(self, name: str, content: bytes) -> None:
        """Add to the end of a file; what an interrupted write left behind is cut off first."""
        path, listed = self._path(name), manifest_of(self.root).current().get(name)
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
                self._list([(DONE, 0, 0, name)], sync=False)
            finally:
                os.close(file)

    def last_append(self, name: str) -> bytes:
        """Return what was last added to a file, and is whole; empty if there is none."""
        path, listed = self._path(name), manifest_of(self.root).current().get(name)
        if listed is None:
            return b""
        content = _content(path) or b""
        whole = [piece for piece in listed.pieces[-2:] if piece.end <= len(content)]
        if not whole or not holds(whole[-1], content):
            raise FedsimError(f"{path} was changed or damaged since it was written. {DAMAGED}")
        return content[whole[-1].offset : whole[-1].end]

    def read(self, name: str) -> bytes | None:
        """Return a file as it was written, or complain; None: it never was."""
        path, before = self._path(name), b""
        while True:
            # In this order: what is written meanwhile has its line already.
            content, listed = _content(path), manifest_of(self.root).current().get(name)
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

    def read_tensors(self, name: str) -> "tuple[dict[str, Tensor], dict[str, Any]] | None":
        """Read tensors and their notes."""
        from fedsim.storage.tensors import tensors_from

        content = self.read(name)
        return None if content is None else tensors_from(content, self.root / name)

    def has(self, name: str) -> bool:
        """Say whether a file was written here."""
        return self._was_written(name, manifest_of(self.root).current().get(name))

    def stamp(self, name: str) -> str | None:
        """Return what a file's content is known by, for those who remember it."""
        listed = manifest_of(self.root).current().get(name)
        return None if listed is None else listed.pieces[-1].digest

    def names(self, start: str = "") -> list[str]:
        """Return the names of the files that were written here and begin like this."""
        listed = [item for item in manifest_of(self.root).current().items() if item[0].startswith(start)]
        return [name for name, about in listed if self._was_written(name, about)]

    def _was_written(self, name: str, listed: Listed | None) -> bool:
        return listed is not None and (listed.done or (self.root / name).exists())

    def delete(self, names: Iterable[str]) -> None:
        """Delete files that were written here, and nothing else."""
        listed = manifest_of(self.root).current()
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
    listed = manifest_of(storage.root).current()
    return [name for name in names if f"{folder}/{name}" not in listed]


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FedsimError(f"{path}: cannot be read ({error.strerror or error}). {DAMAGED}") from error


def _whole_lines(file: int, longest: int = 8192) -> int:
    """Return where the last whole line of a file ends."""
    size = os.fstat(file).st_size
    tail = os.pread(file, longest, max(0, size - longest))
    return size - len(tail) + tail.rfind(b"\n") + 1
