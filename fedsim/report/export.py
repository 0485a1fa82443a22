"""Out to other tools: one table over many runs as CSV, parquet or LaTeX."""

import io
from collections.abc import Sequence
from pathlib import Path

from fedsim.core.errors import FedsimError
from fedsim.report.tidy import COLUMNS, Exported, tidy
from fedsim.storage.files import as_bytes, csv_text, write_whole
from fedsim.storage.manifest import MANIFEST

SUFFIXES = (".csv", ".parquet", ".tex")


def write_table(path: Path, found: Exported, metrics: Sequence[str] = ()) -> int:
    """Write the scores of runs in the form that the file's name asks for; return how many there are."""
    check_place(path)
    rows = tidy(found, metrics)
    if not rows:
        raise FedsimError(f"none of the runs has a score of {', '.join(metrics)}")
    if path.suffix == ".tex":
        from fedsim.report.latex import latex_table

        content = as_bytes(latex_table(found, metrics))
    elif path.suffix == ".csv":
        columns = list(rows[0])
        lines = [["" if row[name] is None else str(row[name]) for name in columns] for row in rows]
        content = as_bytes(csv_text([columns, *lines]))
    else:
        content = _parquet(rows)
    write_whole(path, content)
    return len(rows)


def check_place(path: Path) -> None:
    """Refuse names without a known end, and places inside of run folders, which vouch for their files."""
    if path.suffix not in SUFFIXES:
        raise FedsimError(f"--to {path}: expected a name that ends in {', '.join(SUFFIXES)}")
    if inside := [folder for folder in path.resolve().parents if (folder / MANIFEST).exists()]:
        raise FedsimError(f"--to {path}: {inside[0]} is a run folder. Remedy: a file outside of it.")


def _parquet(rows: list[dict[str, object]]) -> bytes:
    """Return rows as parquet, each column of one type even where it is empty."""
    import pandas

    frame = pandas.DataFrame(rows)
    kinds = dict.fromkeys(frame.columns, "string")
    kinds |= dict.fromkeys(("seed", "round", "client", "batch_size"), "Int64")
    kinds |= dict.fromkeys(("value", "baseline"), "Float64")
    assert set(COLUMNS) <= set(frame.columns)
    content = io.BytesIO()
    frame.astype(kinds).to_parquet(content, index=False)
    return content.getvalue()
