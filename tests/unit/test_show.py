"""`fedsim show`: every kind of run in the terminal, without the heavy libraries."""

import subprocess
import sys
from pathlib import Path

import pytest
from made_move import a_move
from made_runs import made_comparison, made_run, made_sweep

from fedsim.commands.completion import completions
from fedsim.storage.findings import Finding, keep_finding
from fedsim.storage.games import keep_move
from fedsim.storage.runfolder import RunFolder

COMPLETE = {"status": "complete", "reason": "", "metrics": {}}


def test_the_latest_run_is_shown_with_baselines_status_and_path(tmp_path: Path, command) -> None:
    for time in ("03-04-05", "03-04-07", "03-04-06"):
        made_run(tmp_path / "runs" / "2026-01-02" / f"{time}_made", name=f"of {time}")
    done = command("show", "latest", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "of 03-04-07 (run, 2026-01-02 03:04:07): complete"
    assert lines[1] == "model fcn3; data mnist_small; attack ilrg; defense none; seed 0"
    (row,) = [line for line in lines if "lnacc" in line]
    assert "0.750" in row
    assert "0.250" in row
    assert lines[-1] == str(tmp_path / "runs" / "2026-01-02" / "03-04-07_made")


def test_every_kind_has_its_table(tmp_path: Path, command) -> None:
    made_sweep(tmp_path / "sweep")
    compared = made_comparison(tmp_path / "comparison")
    points = {"answer": "In short.", "points": ["none: leaks to ilrg", "noise: stops it"]}
    compared.write_summary(compared.summary() | points)
    game, proof, calibration = (RunFolder(tmp_path / kind) for kind in ("game", "proof", "calibration"))
    for folder in (game, proof, calibration):
        folder.begin(folder.path.name, "")
        folder.write_summary({"name": "made", **COMPLETE, "steps": 12})
    keep_move(game.storage, a_move("lattice", 1), None)
    keep_finding(calibration.storage, Finding(study="costs", case="k=1", figure="seconds", value=0.25))
    shown = {path.name: command("show", path.name, cwd=tmp_path).stdout for path in tmp_path.iterdir()}
    assert shown["sweep"].count("complete") == 1 + 3
    assert "0.500 (0.250)" in shown["sweep"]
    assert "seed 0, 1, 2" in shown["sweep"]
    assert "0.625 (0.250)" in shown["comparison"]  # the mean over two seeds
    assert "noise (sigma 0.1)" in shown["comparison"]
    assert "\n- none: leaks to ilrg\n- noise: stops it\n" in shown["comparison"]  # as its report begins
    assert "1 of 1" in shown["game"]
    assert "lattice" in shown["game"]
    assert "12" in shown["proof"]
    assert "0.25" in shown["calibration"]


def test_words_of_others_command_no_terminal(tmp_path: Path, command) -> None:
    made_run(tmp_path / "run", name="\x1b[2J[bold]", metric="[red]\x1b]0;x\x07")
    done = command("show", "run", cwd=tmp_path)
    assert "\x1b" not in done.stdout
    assert "\\x1b[2J[bold]" in done.stdout
    assert "[red]" in done.stdout


def test_what_cannot_be_shown_is_said_with_a_remedy(tmp_path: Path, command) -> None:
    (made_run(tmp_path / "torn").path / "config.yaml").write_text("x")
    (tmp_path / "empty").mkdir()
    unshown = (
        ("torn", "changed or damaged"),
        ("empty", "no config.yaml in it. Remedy"),
        ("none", "no such folder"),
    )
    for name, words in unshown:
        done = command("show", name, cwd=tmp_path)
        assert done.returncode == 1
        assert words in done.stderr
    assert "no run folder under runs/" in command("show", "latest", cwd=tmp_path).stderr


def test_the_page_is_opened_in_a_browser(tmp_path: Path, command, monkeypatch) -> None:
    opened = list[str]()
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
    made_run(tmp_path / "a run")
    done = command("show", "a run", "--open", cwd=tmp_path)
    assert "report.html is not there. Remedy: fedsim report" in done.stderr
    (tmp_path / "a run" / "report.html").write_text("here")
    assert command("show", "a run", "--open", cwd=tmp_path).returncode == 0
    assert opened == [(tmp_path / "a run" / "report.html").as_uri()]
    monkeypatch.setattr("webbrowser.open", lambda address: False)
    assert "no browser to open" in command("show", "a run", "--open", cwd=tmp_path).stderr


def test_run_folders_complete(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    made_run(tmp_path / "runs" / "2026-01-02" / "03-04-05_one")
    made_sweep(tmp_path / "runs" / "2026-01-03" / "03-04-05_sweep")
    assert completions(["show"], "") == [
        *("latest", "--open", "runs/2026-01-03/03-04-05_sweep", "runs/2026-01-02/03-04-05_one")
    ]
    assert completions(["show", "la"], "la") == ["latest"]
    assert completions(["export", "runs"], "--f") == ["--figures", "--format"]
    assert "show" in completions([], "sh")


@pytest.mark.parametrize("kind", ["run", "sweep", "comparison"])
def test_showing_imports_no_heavy_library(tmp_path: Path, kind: str) -> None:
    {"run": made_run, "sweep": made_sweep, "comparison": made_comparison}[kind](tmp_path / "it")
    code = (
        "import sys; sys.argv = ['fedsim', 'show', 'it']; from fedsim.commands.cli import main; main(); "
        "heavy = {'torch', 'flwr', 'numpy', 'pandas', 'matplotlib', 'hydra'} & set(sys.modules); "
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "0.250" in done.stdout
