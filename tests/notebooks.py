"""Notebooks without a kernel: code cells run in order in one namespace, outputs as a notebook keeps them.

`python tests/notebooks.py NOTEBOOK ...` runs them and stores what they show.
"""

import ast
import base64
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any


def execute(path: Path) -> dict[str, Any]:
    """Run a notebook's code cells; return the notebook with their outputs."""
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    namespace: dict[str, Any] = {"__name__": "__main__"}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(cells, start=1):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            value = run_cell("".join(cell["source"]), f"{path.name}, cell {number}", namespace)
        cell["execution_count"], cell["outputs"] = number, []
        if text := printed.getvalue():
            cell["outputs"].append({"name": "stdout", "output_type": "stream", "text": _lines(text)})
        if value is not None:
            cell["outputs"].append(
                {
                    "data": _shown(value),
                    "execution_count": number,
                    "metadata": {},
                    "output_type": "execute_result",
                }
            )
    return notebook


def run_cell(source: str, name: str, namespace: dict[str, Any]) -> Any:
    """Run a cell, and return the value of its last expression."""
    tree, last = ast.parse(source, name), None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = ast.Expression(tree.body.pop().value)  # type: ignore[attr-defined]
    exec(compile(tree, name, "exec"), namespace)
    return None if last is None else eval(compile(last, name, "eval"), namespace)


def _shown(value: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"text/plain": _lines(repr(value))}
    if hasattr(value, "_repr_png_"):
        found["image/png"] = base64.b64encode(value._repr_png_()).decode()
    elif hasattr(value, "_repr_html_"):
        found["text/html"] = _lines(value._repr_html_())
    return found


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        target = Path(argument)
        target.write_text(json.dumps(execute(target), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
