"""Changes that no test could notice, each with its reason: equivalents.yaml, written by hand."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import yaml

from mutation.changes import Mutant

TABLE = Path(__file__).with_name("equivalents.yaml")
Key = tuple[str, str, str]  # file, line, change


def equivalents() -> dict[Key, str]:
    """Return the reasons by what they are about: the text of a line; its number would not last."""
    rows = yaml.safe_load(TABLE.read_text(encoding="utf-8")) or []
    return {(row["file"], row["line"], row["change"]): row["why"] for row in rows}


def key(root: Path, mutant: Mutant) -> Key:
    """Return what the table calls a mutant by."""
    return str(mutant.path.relative_to(root)), mutant.text, mutant.what


def outdated(root: Path, known: Mapping[Key, str], every: Iterable[Mutant]) -> list[str]:
    """Return the rows about these files that are no mutant's: the code has changed since."""
    there = {key(root, mutant) for mutant in every}
    files = {file for file, _, _ in there}
    return [" ".join(row) for row in known if row[0] in files and row not in there]
