"""The example notebook runs from top to bottom, and shows what is stored in it."""

import json
from pathlib import Path
from typing import Any

import pytest
from notebooks import execute

NOTEBOOK = Path(__file__).parents[2] / "examples" / "attack_your_model.ipynb"


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def kinds(notebook: dict[str, Any]) -> list[list[str]]:
    return [[kind for out in cell["outputs"] for kind in out["data"]] for cell in code_cells(notebook)]


def scores(notebook: dict[str, Any]) -> dict[str, float]:
    """The first table that the notebook shows."""
    shown = next(cell["outputs"][0] for cell in code_cells(notebook) if cell["outputs"])
    rows = [line.split() for line in shown["data"]["text/plain"][1:]]
    return {name: float(value) for name, value, _ in rows}


@pytest.mark.slow
def test_the_notebook_runs_and_shows_what_it_has_stored(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    stored, fresh = json.loads(NOTEBOOK.read_text()), execute(NOTEBOOK)
    assert kinds(fresh) == kinds(stored)
    assert sum("image/png" in shown for shown in kinds(stored)) == 2
    for notebook in (stored, fresh):  # not to the last bit, which is the processor's
        found = scores(notebook)
        assert (found["lnacc"], found["ssim"]) == (1, 1)
        assert found["psnr"] > 100
    counts = code_cells(fresh)[4]["outputs"][0]["data"]["text/plain"]
    assert counts == code_cells(stored)[4]["outputs"][0]["data"]["text/plain"]
