"""What there is to choose from, fedsim's own and others'. Light: reads files, and runs no code of theirs."""

import ast
import functools
import importlib.util
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsim.config.plugins import config_folders
from fedsim.core.errors import FedsimError, in_words
from fedsim.core.expectation import Expectation, read_expectations, read_minutes
from fedsim.core.yamls import read_yaml

GROUPS = (
    "attack",
    "defense",
    "client",
    "audit",
    "forgery",
    "data",
    "model",
    "federation",
    "engine",
    "metric",
    "tracking",
    "experiment",
)
LABELS = {"Run": "Run: ", "Expected": "Expected: ", "Paper": "Paper: "}


@dataclass(frozen=True)
class Entry:
    """One yaml of a group, in a few lines."""

    group: str
    name: str
    summary: str
    paper: str
    run: str = ""  # of an experiment: how it is run
    minutes: float | None = None  # and how long it takes on two cores
    words: str = ""  # what to expect of it, and what its paper has
    expected: tuple[Expectation, ...] = ()  # the figures to expect


def config_dir() -> Path:
    """Return the folder of fedsim's own configs."""
    return Path(__file__).parents[1] / "conf"


def names(group: str) -> list[str]:
    """Return the names that a group offers."""
    return [path.stem for path in _files(group)]


def entries(group: str) -> list[Entry]:
    """Return what a group offers, by name."""
    return [_entry(group, path) for path in _files(group)]


def _files(group: str) -> list[Path]:
    """Return the yamls of a group; of two of one name fedsim's own, as Hydra does."""
    found: dict[str, Path] = {}
    for folder in (config_dir(), *config_folders()):
        for path in (folder / group).glob("*.yaml"):
            found.setdefault(path.stem, path)
    return [found[name] for name in sorted(found)]


def catalog_text(groups: tuple[str, ...] = (), columns: int | None = None) -> str:
    """Return groups as text, a block a group; columns: of the terminal that it must fit.

    Without groups all of them, the experiments in one line each: their figures would fill a book.
    """
    blocks = [_block(group, columns, brief=not groups) for group in groups or GROUPS]
    more = [] if groups else ["fedsim list experiment: how each is run, and the figures to expect of it"]
    return "\n\n".join([*blocks, *more])


def _block(group: str, columns: int | None, brief: bool) -> str:
    found = entries(group)
    width = max((len(entry.name) for entry in found), default=0)
    lines = [f"{group}=..." if found else f"{group}: none yet"]
    for entry in found:
        time = f" ({entry.minutes:g} minutes)" if entry.minutes is not None else ""
        texts = [entry.summary + time] if brief and group == "experiment" else _in_full(entry, time)
        if columns is not None:
            room = max(40, columns - width - 5)
            texts = [line for text in texts for line in textwrap.wrap(text, room) or [""]]
        for name, text in zip([entry.name, *[""] * len(texts)], texts, strict=False):
            lines.append(f"  {name:<{width}}  {text}")
    return "\n".join(lines)


def _in_full(entry: Entry, time: str) -> list[str]:
    """Return all that is known of an entry, a text a line."""
    figures = "; ".join(map(str, entry.expected))
    more = (
        entry.paper and f"[{re.sub('^none', 'no paper', entry.paper)}]",
        entry.run + time,
        entry.words and f"expected: {entry.words}",
        figures and f"figures: {figures}",
    )
    return [entry.summary, *filter(None, more)]


def _entry(group: str, path: Path) -> Entry:
    text = path.read_text(encoding="utf-8")
    data = read_yaml(text) or {}
    target, comments, summary, paper = data.get("_target_", ""), _header(text), "", ""
    minutes: float | None = None
    expected: tuple[Expectation, ...] = ()
    try:
        if target:
            summary, paper = _documented(target)
        if group == "experiment":
            minutes = read_minutes(data.get("minutes"), path.name)
            expected = read_expectations(data.get("expected"), path.name)
    except Exception as error:  # somebody else's, which is broken or not installed
        if path.is_relative_to(config_dir()):
            raise
        comments, summary = [], f"({'not found' if target else 'not readable'}: {in_words(error)})"
    said = {
        label: " ".join(line.removeprefix(start) for line in comments if line.startswith(start))
        for label, start in LABELS.items()
    }
    return Entry(
        group=group,
        name=path.stem,
        summary=comments[0] if comments else summary,
        paper=said["Paper"] or paper,
        run=(said["Run"] or f"fedsim experiment={path.stem}") if group == "experiment" else "",
        minutes=minutes,
        words=said["Expected"] if group == "experiment" else "",
        expected=expected,
    )


def _header(text: str) -> list[str]:
    """Return the comments at the top of a yaml, without Hydra's own; indented lines go on with the last."""
    lines = list[str]()
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        if line.startswith("#   ") and lines:
            lines[-1] += " " + line.removeprefix("#").strip()
        elif not line.startswith("# @package"):
            lines.append(line.removeprefix("#").strip())
    return lines


def _documented(target: str) -> tuple[str, str]:
    """Return the first line of a target's docstring and the paper that its module names."""
    module, _, name = target.rpartition(".")
    tree = syntax(module)
    found: Any = next((node for node in tree.body if getattr(node, "name", None) == name), None)
    if found is None:
        raise FedsimError(f"{target}: no such class or function in {module}")
    summary = (ast.get_docstring(found) or "").partition("\n")[0]
    return summary, _paper(ast.get_docstring(tree) or "")


def _paper(text: str) -> str:
    """Return the paper that a module's docstring names, with the indented lines that go on with it."""
    found = re.search(r"^Paper: (.+(?:\n +.+)*)", text, re.MULTILINE)
    return re.sub(r"\s+", " ", found[1]) if found else ""


@functools.cache
def syntax(module: str) -> ast.Module:
    """Return the syntax tree of a module, which is not run."""
    return ast.parse(source(module))


def source(module: str) -> str:
    """Return the text of a module."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise FedsimError(f"no module {module}")
    return Path(spec.origin).read_text(encoding="utf-8")
