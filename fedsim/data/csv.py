"""A user's own table: a CSV file whose columns are guessed, and shown in the log and the report."""

import csv as csv_files
import logging
import math
import re
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from fedsim.core.errors import FedsimError
from fedsim.core.inputs import Choice, Number, Row
from fedsim.core.randomness import generator
from fedsim.core.settings import number, switch, whole
from fedsim.core.types import Task
from fedsim.data.form import Form
from fedsim.data.images import Dataset
from fedsim.data.rows import ArrayRows

log = logging.getLogger(__name__)
FEWEST = 8  # rows that make a training and a test half
DECIMAL = re.compile(r"[+-]?\d+,\d+")
SEPARATORS = ",;\t|"
MISSING = frozenset({"", "?", "-", "na", "n/a", "nan", "null", "none"})  # in small letters


def csv(
    *,
    path: str,
    label: str | None = None,
    most_categories: int = 50,
    drop_missing: bool = False,
    test_share: float = 0.2,
    seed: int = 0,
) -> Dataset:
    """Your own table: a CSV file with a line of names; numbers and categories are told by its cells."""
    number("data.test_share", test_share, above=0, below=1)
    switch("data.drop_missing", drop_missing)
    whole("data.most_categories", most_categories, 2)
    file = Path(path).expanduser().resolve()
    names, cells = _read(file, drop_missing)
    wanted = names[-1] if label is None else label
    if wanted not in names:
        raise FedsimError(f"data.label: expected one of {', '.join(names)}, got {wanted!r}")
    place = names.index(wanted)
    classes = sorted({row[place] for row in cells})
    if not 2 <= len(classes) <= most_categories:
        raise FedsimError(
            f"csv: {file}: column {wanted!r}, the label, has {len(classes)} values, expected 2 to "
            f"{most_categories}. Remedy: data.label=NAME of another column."
        )
    columns = tuple(
        guessed_column(name, [row[i] for row in cells], most_categories, str(file))
        for i, name in enumerate(names)
        if i != place
    )
    form = Row(columns=columns)
    log.info("csv: label %s of %d classes; %s", wanted, len(classes), "; ".join(map(_shown, columns)))
    rows = _encoded(form, [[cell for i, cell in enumerate(row) if i != place] for row in cells])
    labels = torch.tensor([classes.index(row[place]) for row in cells])
    order = torch.randperm(len(cells), generator=generator(seed, "csv"))
    rows, labels, test = rows[order], labels[order], max(1, round(test_share * len(cells)))
    task = Task(
        input_shape=form.shape,
        num_classes=len(classes),
        mean=(float(rows.mean()),),
        std=(max(1e-3, float(rows.std())),),
        inputs=form,
    )
    train, rest = (
        ArrayRows(rows=rows[part], labels=labels[part]) for part in (slice(None, -test), slice(-test, None))
    )
    return Dataset(task=task, train=train, test=rest, form=Form(one_hot=form.groups))


def guessed_column(name: str, cells: Sequence[str], most_categories: int, source: str) -> Number | Choice:
    """Return what a column is: numbers where all cells are, unless there are two; else categories."""
    values = sorted(set(cells))
    try:
        figures = [float(cell) for cell in values]
    except ValueError:
        figures = []
    if figures and len(figures) > 2 and all(map(math.isfinite, figures)):
        integers = all(figure.is_integer() for figure in figures)
        return Number(name, min(figures), max(figures), whole=integers)
    told = [value for value in values if value.lower() not in MISSING]
    if len(told) > 2 and len(told) < len(values) and all(map(_is_number, told)):
        gap = next(value for value in cells if value.lower() in MISSING)
        raise FedsimError(
            f"csv: {source}: column {name!r}: expected numbers, got {gap!r} in row {cells.index(gap) + 1}. "
            "Remedy: data.drop_missing=true leaves out rows with such cells."
        )
    if len(values) > most_categories:
        raise FedsimError(
            f"csv: {source}: column {name!r} has {len(values)} different texts, expected at most "
            f"{most_categories} categories. Remedy: leave the column out, or a larger data.most_categories."
        )
    return Choice(name, tuple(values))


def _is_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False


def _encoded(form: Row, cells: Sequence[Sequence[str]]) -> Tensor:
    parts = []
    for column, values in zip(form.columns, zip(*cells, strict=True), strict=True):
        if isinstance(column, Number):
            parts.append(torch.tensor([column.share(float(value)) for value in values])[:, None])
        else:
            places = torch.tensor([column.categories.index(value) for value in values])
            parts.append(functional.one_hot(places, len(column.categories)).float())
    return torch.cat(parts, dim=1)[:, None, None, :].contiguous()


def _read(file: Path, drop_missing: bool) -> tuple[list[str], list[list[str]]]:
    if not file.is_file():
        raise FedsimError(f"csv: no such file: {file}. Remedy: set data.path to a table of yours.")
    try:
        with file.open(encoding="utf-8-sig", newline="") as opened:
            first = opened.readline()
            separator = max(SEPARATORS, key=first.count)
            opened.seek(0)
            found = csv_files.reader(opened, delimiter=separator)
            lines = [
                (found.line_num, [_plain(cell.strip(), separator) for cell in line])
                for line in found
                if any(map(str.strip, line))
            ]
    except (OSError, UnicodeDecodeError, csv_files.Error) as error:
        raise FedsimError(
            f"csv: {file}: expected a table in UTF-8 with commas, semicolons or tabs ({error})"
        ) from error
    names = [name or f"column {place}" for place, name in enumerate(lines[0][1], start=1)] if lines else []
    if len(names) < 2 or len(lines) <= FEWEST:
        raise FedsimError(
            f"csv: {file}: expected a first line of two or more names and at least {FEWEST} rows, "
            f"got {len(names)} names and {max(0, len(lines) - 1)} rows"
        )
    if twice := [name for name in names if names.count(name) > 1]:
        raise FedsimError(
            f"csv: {file}: expected a first line with a name for every column, got {twice[0]!r} twice. "
            "Remedy: write a line of different names above the rows."
        )
    for line, row in lines[1:]:
        if len(row) != len(names):
            raise FedsimError(f"csv: {file}, line {line}: expected {len(names)} cells, got {len(row)}")
    cells = [row for _, row in lines[1:]]
    if drop_missing:
        whole_rows = [row for row in cells if not any(cell.lower() in MISSING for cell in row)]
        log.info(
            "csv: %d of %d rows have a missing cell and are left out",
            len(cells) - len(whole_rows),
            len(cells),
        )
        cells = whole_rows
        if len(cells) < FEWEST:
            raise FedsimError(
                f"csv: {file}: expected at least {FEWEST} rows without a missing cell, got {len(cells)}"
            )
    return names, cells


def _plain(cell: str, separator: str) -> str:
    """Write a decimal comma, which goes with semicolons, as a point."""
    return cell.replace(",", ".") if separator == ";" and DECIMAL.fullmatch(cell) else cell


def _shown(column: Number | Choice) -> str:
    if isinstance(column, Choice):
        return f"{column.name}: {len(column.categories)} categories"
    return f"{column.name}: {'whole ' if column.whole else ''}numbers from {column.low:g} to {column.high:g}"
