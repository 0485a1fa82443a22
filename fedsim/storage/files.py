"""Files that are whole or not there, for their owner's eyes alone: bytes and tables."""

import csv
import hashlib
import io
import json
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedsim.core.errors import FedsimError

PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700
_UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError)


class StorageError(FedsimError):
    """The disk did not take a write: nobody's fault but the disk's, and no run can go on without it."""


def write_whole(path: Path, content: bytes, temporary_folder: Path | None = None) -> None:
    """Write a file: a reader sees the old content or the new one, never half, also after a power cut."""
    with writing(path):
        make_folder(path.parent)
        temporary = (temporary_folder or path.parent) / f".{secrets.token_hex(8)}.part"
        make_folder(temporary.parent)
        try:
            file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE)
            try:
                write_all(file, content)
            finally:
                os.close(file)
            os.replace(temporary, path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def write_all(file: int, content: bytes, sync: bool = True) -> None:
    """Write to an open file, and have it survive a power cut."""
    left = memoryview(content)
    while left:
        left = left[os.write(file, left) :]
    if sync:
        os.fsync(file)


def make_folder(path: Path) -> None:
    """Make a folder, and those above it, for the owner's eyes alone; what is there stays as it is."""
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
        sync_folder(path.parent)


def make_private(path: Path) -> None:
    """Make a folder for the owner's eyes alone, or make it that, unless we stand in it."""
    with writing(path):
        make_folder(path)
        if not Path.cwd().is_relative_to(path.resolve()):
            path.chmod(PRIVATE_FOLDER)


def sync_folder(path: Path) -> None:
    """Have the names in a folder survive a power cut."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say in our words what the disk says against a write."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"{path}: cannot be written ({error.strerror or error}). Remedy: room and rights on that disk; "
            "what was kept before is whole, and fedsim resume goes on with a run."
        ) from error


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Say in our words what is wrong with a file's content."""
    try:
        yield
    except (*_UNREADABLE, csv.Error) as error:
        raise FedsimError(f"{path}: not readable ({type(error).__name__}: {error})") from error


def tensor_header(content: bytes) -> dict[str, Any]:
    """Return what a safetensors file says of its tensors, type and shape, without them."""
    header: dict[str, Any] = dict(json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")]))
    return header


def csv_text(lines: Iterable[Sequence[str]]) -> str:
    """Return lines as CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()


def as_bytes(text: str) -> bytes:
    """Encode a text; what UTF-8 cannot hold is escaped: half a surrogate pair in a client's words."""
    return text.encode("utf-8", "backslashreplace")


def as_file_name(name: str) -> str:
    """Return a name that is a file's in any folder: letters, digits and . = - alone, and not too many."""
    plain = re.sub(r"[^\w.=-]+", "_", name, flags=re.ASCII)
    if plain == name and len(name) <= 100 and not name.startswith("."):
        return name
    return (
        f"{plain.lstrip('.')[:80]}_{hashlib.sha256(name.encode(errors='backslashreplace')).hexdigest()[:8]}"
    )
