"""Documents as data: their code blocks, commands and links. Python runs as notebooks' cells do."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from notebooks import run_cell

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
TUTORIAL = sorted((ROOT / "docs" / "tutorial").glob("*.md"))
PAGES = sorted((ROOT / "docs").rglob("*.md"))
OTHERS = [ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "examples").rglob("README.md"))]
_BLOCK = re.compile(r"^(?:```(\w*)\n(.*?)^```|<!-- (python)\n(.*?)^-->)$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def blocks(page: Path, *languages: str) -> list[str]:
    """Return a page's blocks of code in their order; `<!-- python` in a comment is for the tests alone."""
    found = _BLOCK.findall(page.read_text(encoding="utf-8"))
    return [shown or hidden for name, shown, unseen, hidden in found if (name or unseen) in languages]


def python_blocks(page: Path) -> list[str]:
    """Return a page's Python."""
    return blocks(page, "python")


def run_python(page: Path) -> dict[str, Any]:
    """Run a page's Python in one namespace, in the working folder; return it."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for number, block in enumerate(python_blocks(page), start=1):
        run_cell(block, f"{page.name}, block {number}", namespace)
    return namespace


def commands(page: Path) -> list[list[str]]:
    """Return the words of every `fedsim ...` in a page's blocks of shell, comments left out."""
    found = []
    for block in blocks(page, "sh", ""):
        for line in block.replace("\\\n", " ").splitlines():
            line = line.removeprefix("$ ")
            if line.startswith("fedsim "):
                found.append(shlex.split(line, comments=True)[1:])
    return found


def links(page: Path) -> Iterator[tuple[str, str]]:
    """Return path and anchor of every link of a page that stays in the repository."""
    for target in _LINK.findall(_BLOCK.sub("", page.read_text(encoding="utf-8"))):
        if not re.match(r"\w+:", target):
            path, _, anchor = target.partition("#")
            yield path, anchor


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as code hosts and MkDocs make them."""
    headings = re.findall(r"^#+ (.+)$", _BLOCK.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
