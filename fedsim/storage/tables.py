"""Tables of frozen dataclasses as CSV files: a column a field, empty where a value is None."""

import csv
import io
import types
from collections.abc import Iterable
from dataclasses import MISSING, fields
from typing import Any, TypeVar, get_args, get_type_hints

from fedsim.core.errors import printable
from fedsim.storage.files import as_bytes, csv_text, reading
from fedsim.storage.folder import Storage

Row = TypeVar("Row")


def write_rows(storage: Storage, name: str, kind: type[Row], rows: Iterable[Row]) -> None:
    """Write a table."""
    storage.write(name, as_bytes(csv_text([_columns(kind), *map(_values, rows)])))


def append_row(storage: Storage, name: str, row: Any) -> None:
    """Add a line to a table, which may be its first."""
    heading = [] if storage.has(name) else [_columns(type(row))]
    storage.append(name, as_bytes(csv_text([*heading, _values(row)])))


def line_of(row: Any) -> str:
    """Return a row as it stands in its table."""
    return csv_text([_values(row)])


def read_rows(storage: Storage, name: str, kind: type[Row]) -> list[Row]:
    """Read a table; no lines if it was never written."""
    if (text := storage.read_text(name)) is None:
        return []
    with reading(storage.root / name):
        parsers = _parsers(kind)
        heading, *lines = csv.reader(io.StringIO(text, newline=""), strict=True)
        columns = _columns(kind)
        later = fields(kind)[len(heading) :]  # type: ignore[arg-type]
        if heading != columns[: len(heading)] or any(new.default is MISSING for new in later):
            raise ValueError(f"expected the columns {', '.join(columns)}, got {', '.join(heading)}")
        known = parsers[: len(heading)]  # of an earlier version: columns that came later have defaults
        return [
            kind(**{key: parse(value) for (key, parse), value in zip(known, line, strict=True)})
            for line in lines
        ]


def _columns(kind: type[Any]) -> list[str]:
    return [field.name for field in fields(kind)]


def _values(row: Any) -> list[str]:
    values = (getattr(row, name) for name in _columns(type(row)))
    return ["" if value is None else printable(str(value)) for value in values]


def _parsers(kind: type[Any]) -> list[tuple[str, Any]]:
    return [(name, _parser(hint)) for name, hint in get_type_hints(kind).items()]


def _parser(hint: Any) -> Any:
    """Return what reads a column's text as a value of its field's type."""
    if isinstance(hint, types.UnionType):  # a type or None
        plain = _parser(next(part for part in get_args(hint) if part is not types.NoneType))
        return lambda text: plain(text) if text else None
    return _boolean if hint is bool else hint


def _boolean(text: str) -> bool:
    if text not in ("True", "False"):
        raise ValueError(f"expected True or False, got {text!r}")
    return text == "True"
