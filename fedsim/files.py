"""Files that are whole or not there: tensors with notes, texts, tables."""

import csv
import io
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from torch import Tensor

from fedsim.errors import FedsimError


def write_text(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old content or the new one, never half of it."""
    _write_whole(path, text.encode())


def write_tensors(path: Path, tensors: Mapping[str, Tensor], notes: Mapping[str, Any] | None = None) -> None:
    """Write tensors, and notes as JSON beside them, whole or not at all."""
    plain = {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}
    _write_whole(path, save(plain, metadata={"notes": json.dumps(dict(notes or {}))}))


def _write_whole(path: Path, content: bytes) -> None:
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        file = open(temporary, "wb")  # noqa: SIM115 (closed below, opened again when the folder is new)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open(temporary, "wb")  # noqa: SIM115
    with file:
        file.write(content)
    os.replace(temporary, path)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what write_tensors wrote."""
    if not path.is_file():
        raise FedsimError(f"no such file: {path}. Remedy: name a run folder that holds it.")
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
            notes: dict[str, Any] = json.loads((file.metadata() or {}).get("notes", "{}"))
    except (SafetensorError, ValueError, OSError) as error:
        raise FedsimError(f"{path}: not a readable safetensors file ({error})") from error
    return tensors, notes


def csv_text(lines: Iterable[Sequence[str]]) -> str:
    """Return lines as CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()


def append_row(path: Path, row: Any) -> None:
    """Add a dataclass as a line of a CSV file, with its fields' names as the first one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [] if path.exists() else [list(asdict(row))]
    with path.open("a", encoding="utf-8", newline="") as file:
        values = ["" if value is None else str(value) for value in asdict(row).values()]
        file.write(csv_text([*lines, values]))


def read_rows(path: Path) -> list[dict[str, str]]:
    """Read the lines of a CSV file; none if there is no file."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [row for row in rows if None not in row.values()]  # a line cut short by a crash is no row
