"""Where the configs lie, and what there is to choose from. Light: reads files, imports no code of theirs."""

import ast
import functools
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fedsim.core.errors import FedsimError

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
    "experiment",
)


@dataclass(frozen=True)
class Entry:
    """One yaml of a group, in a line."""

    group: str
    name: str
    summary: str
    paper: str


def config_dir() -> Path:
    """Return the folder of fedsim's own configs."""
    return Path(__file__).parents[1] / "conf"


def entries(group: str) -> list[Entry]:
    """Return what a group offers, by name."""
    return [_entry(group, path) for path in sorted((config_dir() / group).glob("*.yaml"))]


def catalog_text(groups: tuple[str, ...] = GROUPS) -> str:
    """Return the whole catalogue as text, a block a group."""
    blocks = []
    for group in groups:
        found = entries(group)
        width = max((len(entry.name) for entry in found), default=0)
        lines = [f"{group}=..." if found else f"{group}: none yet"]
        for entry in found:
            lines.append(f"  {entry.name:<{width}}  {entry.summary}")
            if entry.paper:
                lines.append(f"  {'':<{width}}  [{entry.paper}]")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _entry(group: str, path: Path) -> Entry:
    text = path.read_text(encoding="utf-8")
    target = (yaml.safe_load(text) or {}).get("_target_", "")
    summary, paper = _documented(target) if target else ("", "")
    comments = _header(text)
    if comments:
        summary = comments[0]
    papers = [line.removeprefix("Paper: ") for line in comments if line.startswith("Paper: ")]
    return Entry(group=group, name=path.stem, summary=summary, paper=(papers or [paper])[0])


def _header(text: str) -> list[str]:
    """Return the comment lines at the top of a yaml, without Hydra's own."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        if not line.startswith("# @package"):
            lines.append(line.removeprefix("#").strip())
    return lines


def _documented(target: str) -> tuple[str, str]:
    """Return the first line of a target's docstring and the paper that its module names."""
    module, _, name = target.rpartition(".")
    tree = _syntax(module)
    found: Any = next((node for node in tree.body if getattr(node, "name", None) == name), None)
    if found is None:
        raise FedsimError(f"{target}: no such class or function in {module}")
    summary = (ast.get_docstring(found) or "").partition("\n")[0]
    lines = (ast.get_docstring(tree) or "").splitlines()
    papers = [line.removeprefix("Paper: ") for line in lines if line.startswith("Paper: ")]
    return summary, (papers or [""])[0]


@functools.cache
def _syntax(module: str) -> ast.Module:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise FedsimError(f"no module {module}")
    return ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
