"""What each method is nothing without, and the trivial thing in its place. A test must miss each."""

import ast
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

from mutation.essential_table import TABLE

GROUPS = ("attack", "defense", "audit", "client", "forgery", "metric")


@dataclass(frozen=True, kw_only=True)
class Step:
    """A function whose body is replaced."""

    name: str  # group/yaml
    path: str
    function: str  # Class.method, or a function of the file
    instead: str


STEPS = [Step(name=row[0], path=row[1], function=row[2], instead=row[3]) for row in TABLE]


def missing(root: Path) -> list[str]:
    """Return the methods with a yaml that no step is named for."""
    named = {step.name for step in STEPS}
    yamls = [f"{group}/{path.stem}" for group in GROUPS for path in (root / "conf" / group).glob("*.yaml")]
    return sorted(set(yamls) - named - {"attack/none", "audit/none"})


def without(root: Path, step: Step) -> tuple[CodeType, range]:
    """Return a file's code with one function replaced, and the lines that were in it."""
    tree = ast.parse((root / step.path).read_text(encoding="utf-8"))
    scope: list[ast.stmt] = tree.body
    for name in step.function.split("."):
        found = next((node for node in scope if getattr(node, "name", None) == name), None)
        if not isinstance(found, ast.ClassDef | ast.FunctionDef):
            raise SystemExit(
                f"expected {step.function} in {step.path}, got none. Remedy: essential_steps.py."
            )
        scope = found.body
    lines = range(found.lineno + 1, (found.end_lineno or found.lineno) + 1)
    found.body = ast.parse(step.instead).body
    ast.fix_missing_locations(tree)
    return compile(tree, str(root / step.path), "exec"), lines
