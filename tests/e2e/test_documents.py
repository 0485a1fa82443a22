"""Code of the documents runs: Python as it stands, commands at small sizes."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import forked
import pytest
from documents import PAGES, README, ROOT, commands, python_blocks, run_python

SMALL = ("federation.rounds=1", "federation.clients=2", "federation.batch_size=4")
FEWER = {  # added to what would take long; of two that differ the later one counts
    "run": SMALL,
    "compare": (*SMALL, "seeds=1"),
    "leaks": ("leaks.ladder=[noise]", "leaks.attacks.matching=[]", "leaks.attacks.exact=[peeling]"),
    "forge": ("proof.steps=20", "forge.challenges=1"),
    "calibrate": ("proof.steps=20",),
}
REFUSED = ("model=my_net.Net", "attack=peeling")  # the page says so
TUTORIAL = [page for page in PAGES if page.parent.name == "tutorial"]
HOWTO = [page for page in PAGES if page.parent.name == "howto"]
ELSEWHERE = ("data=image_folder", "data=cifar100")  # data of the reader's


def smaller(words: list[str]) -> list[str]:
    words = [re.sub(r"(iterations)=\d+", r"\1=10", word) for word in words]
    kind = "run" if "=" in words[0] or words[0].startswith("-") else words[0]
    named = any(word.startswith("experiment=") for word in words)
    federation = SMALL if kind == "leaks" and "=" in words[1] else ()  # of a recording they are as they were
    return [*words, *federation, *(() if named else FEWER.get(kind, ()))]


def play(page: Path, folder: Path) -> None:
    """Run every command of a page in its order."""
    for words in commands(page):
        if any(word in ELSEWHERE for word in words):
            continue
        done = forked.fedsim(*smaller(words), cwd=folder)
        expected = 1 if set(REFUSED) <= set(words) else 0
        assert done.returncode == expected, f"{words}: {done.stdout[-2000:]}{done.stderr[-2000:]}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [page for page in (README, *PAGES) if python_blocks(page)],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_python_of_the_documents_runs(page: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_python(page)


@pytest.mark.slow
def test_commands_of_the_readme_run(tmp_path: Path) -> None:
    done = forked.fedsim("hydra.run.dir=RUN", *SMALL, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    play(README, tmp_path)
    assert (tmp_path / "DIR" / "report.html").is_file()


@pytest.mark.slow
def test_the_figures_of_the_readme_are_those_that_make_run_prints(tmp_path: Path) -> None:
    """A decibel above 100 measures rounding, which is the machine's; all else is the same within .01."""
    (words,) = re.findall(r"^\t\$\(BIN\)/fedsim (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[:1]
    done = forked.fedsim(*words.split(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    shown, printed = (figures_in(text) for text in (README.read_text(), done.stdout))
    assert len(shown) == 9
    assert shown.keys() == printed.keys()
    for name, (mean, baseline) in shown.items():
        assert printed[name][0] == pytest.approx(mean, abs=10 if name == "psnr" else 0.01), name
        assert (printed[name][1] is None) == (baseline is None)
        assert baseline is None or printed[name][1] == pytest.approx(baseline, abs=0.01), name


def figures_in(text: str) -> dict[str, tuple[float, float | None]]:
    """Return mean and baseline of every row of a table as `fedsim` prints it."""
    rows = re.findall(r"^│ (\w+) +│ +([\d.,]+) │ +([\d.,]*) │$", text, re.MULTILINE)
    return {
        name: (float(mean.replace(",", "")), float(blind) if blind else None) for name, mean, blind in rows
    }


@pytest.mark.slow
@pytest.mark.parametrize("page", [*TUTORIAL, *HOWTO], ids=lambda page: page.stem)
def test_commands_of_the_tutorial_and_of_the_how_tos_run(page: Path, tmp_path: Path) -> None:
    folder = tmp_path
    if page.stem == "your-model":
        (tmp_path / "my_net.py").write_text(python_blocks(page)[0])
    elif page.stem in ("your-flower-app", "what-leaks"):
        folder = Path(
            shutil.copytree(ROOT / "examples" / "flower-quickstart", tmp_path / "flower-quickstart")
        )
        done = forked.script("in_process.py", cwd=folder)
        assert done.returncode == 0, done.stderr
    elif page.stem == "own-data":
        lines = [f"the {n} ships of king {n * n} sail at dawn" for n in range(60)]
        (tmp_path / "mine.txt").write_text("\n".join(lines))
        names = [f"score_{place}" for place in range(2, 14)]
        rows = [",".join(str(n**place % 101) for place in range(2, 14)) for n in range(60)]
        table = [
            f"{row},{'red' if n % 3 else 'blue'},{'yes' if n % 2 else 'no'}" for n, row in enumerate(rows)
        ]
        (tmp_path / "mine.csv").write_text("\n".join([",".join([*names, "colour", "bought"]), *table]))
        (tmp_path / "arrays.py").write_text(python_blocks(page)[0])
        assert forked.script("arrays.py", cwd=folder).returncode == 0
    play(page, folder)
    if page.stem == "plug-in":
        test = [sys.executable, "-m", "pytest", "-q", "test_loudest.py"]
        done = subprocess.run(test, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
