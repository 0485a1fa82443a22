"""Contracts on the source itself: who imports whom, what ships, what every module explains."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(path for top in ("fedsim", "attacks", "defenses") for path in (ROOT / top).rglob("*.py"))


def imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("path", sorted((ROOT / "attacks").rglob("*.py")), ids=str)
def test_no_attack_can_see_the_truth(path: Path) -> None:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    names |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    assert not {"Truth", "truth"} & (names | {name.split(".")[-1] for name in imported(path)})
    rooms = (
        "storage",
        "data",
        "metrics",
        "flower",
        "config",
        "lab",
        "integrity",
        "report",
        "commands",
        "api",
    )
    forbidden = tuple(f"fedsim.{room}" for room in rooms)
    assert not {name for name in imported(path) if name.startswith(forbidden)}
    assert "fedsim" not in imported(path)  # which has it all


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_no_pickle_and_only_one_torchvision(path: Path) -> None:
    roots = {name.split(".")[0] for name in imported(path)}
    assert not roots & {"pickle", "cloudpickle", "dill", "joblib"}
    assert "torch.load" not in path.read_text()
    assert "torchvision" not in roots or path.name == "vision.py"


@pytest.mark.parametrize(
    "path", sorted(p for p in (ROOT / "attacks").rglob("*.py") if "(Attack)" in p.read_text()), ids=str
)
def test_an_attack_module_opens_with_what_leaks_the_paper_assumptions_and_failures(path: Path) -> None:
    if path.name == "none.py":
        pytest.skip("attacks nothing")
    document = ast.get_docstring(ast.parse(path.read_text())) or ""
    for line in ("What leaks:", "Paper:", "Assumes:", "Fails:"):
        assert line in document


@pytest.mark.parametrize(
    "path",
    sorted(
        path
        for path in (ROOT / "attacks" / "integrity").rglob("*.py")
        if "(Behaviour)" in path.read_text() or "(Forgery)" in path.read_text()
    ),
    ids=str,
)
def test_a_cheat_opens_with_what_it_gains_the_paper_assumptions_and_what_catches_it(path: Path) -> None:
    document = ast.get_docstring(ast.parse(path.read_text())) or ""
    for line in ("What it gains:", "Paper:", "Assumes:", "Caught by:"):
        assert line in document


@pytest.mark.parametrize("arguments", [["--help"], ["list"], ["--version"]])
def test_help_and_list_do_not_import_the_heavy_libraries(arguments: list[str]) -> None:
    code = (
        f"import sys; sys.argv = ['fedsim', *{arguments!r}]; from fedsim.commands.cli import main; main(); "
        "heavy = {'torch', 'ray', 'flwr', 'numpy', 'matplotlib', 'hydra'} & set(sys.modules); "
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout) > 5


LONGEST = 300  # lines: a file is one idea


def test_no_file_is_too_long() -> None:
    long = [path for path in SOURCES if len(path.read_text().splitlines()) > LONGEST]
    assert not [str(path.relative_to(ROOT)) for path in long]


def test_every_method_names_its_essential_step(monkeypatch) -> None:
    """benchmarks/mutants.py --essential removes them one by one."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    steps = importlib.import_module("mutation.essential_steps")
    assert steps.missing(ROOT) == []
    for step in steps.STEPS:
        steps.without(ROOT, step)  # it is there, and can be left out
