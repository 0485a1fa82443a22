"""The comparison of attacks and defenses: common trainings, resumption, failures, and its page."""

import csv
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import forked
import pytest
from browser import PHONE, assert_looks_well, looked_at, needs_browser
from small_settings import DATA

from fedsim.core.errors import FedsimError
from fedsim.lab.compare import compare, comparison_of
from fedsim.report.comparison_figures import pareto
from fedsim.report.comparison_grid import Entry
from fedsim.storage.comparison import read_cells
from fedsim.storage.runfolder import RunFolder

ROOT = Path(__file__).parents[2]
SMALL = (
    *DATA,
    "model=two_layer",
    "model.width=120",
    "federation.clients=2",
    "federation.rounds=2",
    "federation.batch_size=4",
    "metric=[leacc,lnacc,psnr]",
)
GRID = ("attack=[ilrg,idlg,stein_exact]", "defense=[none,{noise: {sigma: 0.5}},[clip,sparsify]]")


PART = ("attack=[ilrg]", "defense=[none,[clip,sparsify]]", "jobs=2")


def words(folder: Path, *arguments: str, grid: tuple[str, ...] = GRID) -> list[str]:
    return ["compare", *grid, *SMALL, f"into={folder}", *arguments]


@pytest.fixture(scope="session")
def compared(made_once) -> Path:
    def make(folder: Path) -> None:
        done = forked.fedsim(*words(folder), cwd=folder.parent)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == str(folder)

    return made_once("comparison", make)


def group_exists(leader: int) -> bool:
    try:
        os.killpg(leader, 0)
    except ProcessLookupError:
        return False
    return True


def figures(folder: Path) -> dict[tuple[str, str, str], float]:
    with (folder / "comparison.csv").open() as file:
        return {
            (row["attack"], row["defense"], row["metric"]): float(row["mean"])
            for row in csv.DictReader(file)
            if row["mean"] and "seconds" not in row["metric"]
        }


@pytest.mark.slow
def test_every_cell_has_its_figures(compared: Path) -> None:
    found = figures(compared)
    for attack in ("ilrg", "idlg", "stein_exact"):
        for defense in ("none", "noise (sigma 0.5)", "clip + sparsify"):
            assert (attack, defense, "leacc") in found or attack == "stein_exact"
    assert found["ilrg", "none", "lnacc"] > found["ilrg", "noise (sigma 0.5)", "lnacc"]
    assert found["stein_exact", "none", "psnr"] > 100 > found["stein_exact", "noise (sigma 0.5)", "psnr"]
    assert found["", "none", "accuracy"] > 0
    assert found["", "clip + sparsify", "bytes"] < found["", "none", "bytes"]


@pytest.mark.slow
def test_attacks_that_do_not_craft_share_one_training(compared: Path) -> None:
    assert len(list((compared / "trainings").iterdir())) == 3
    cells = {path.name for path in (compared / "cells").iterdir()}
    assert len(cells) == 9
    assert not (compared / "cells" / "ilrg_against_none_0" / "observations").exists()  # replayed
    assert (compared / "cells" / "stein_exact_against_none_0" / "observations").exists()


@pytest.mark.slow
def test_only_what_is_missing_runs_again_and_gives_the_same(compared: Path, tmp_path: Path) -> None:
    copied = tmp_path / "grid"
    shutil.copytree(compared, copied)
    before = figures(copied)
    missing = copied / "cells" / "idlg_against_none_0"
    kept = copied / "cells" / "ilrg_against_none_0" / "summary.json"
    shutil.rmtree(missing)
    (copied / "cells" / "stein_exact_against_none_0" / "summary.json").unlink()  # as a killed run leaves it
    stamp = kept.stat().st_mtime_ns
    done = forked.fedsim(*words(copied), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert kept.stat().st_mtime_ns == stamp
    assert figures(copied) == before


@pytest.mark.slow
def test_finished_runs_of_other_settings_are_not_mixed_in(compared: Path, tmp_path: Path) -> None:
    done = forked.fedsim(*words(compared, "federation.local_lr=0.5"), cwd=tmp_path)
    assert done.returncode == 1
    assert "holds a comparison with other settings" in done.stderr
    assert "Remedy" in done.stderr


@pytest.mark.slow
def test_a_kill_in_the_middle_loses_nothing_that_was_done(compared: Path, tmp_path: Path) -> None:
    folder = tmp_path / "grid"
    with (tmp_path / "out").open("w") as out:
        program = [sys.executable, "-m", "fedsim", *words(folder, grid=PART)]
        process = subprocess.Popen(program, stdout=out, stderr=out, cwd=tmp_path, start_new_session=True)
        deadline = time.monotonic() + 120
        while not list(folder.glob("trainings/*/summary.json")) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.kill()  # alone: those that it started have to notice
        process.wait()
        while group_exists(process.pid):
            assert time.monotonic() < deadline
            time.sleep(0.1)
    again = forked.fedsim(*words(folder, grid=PART), cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    found = figures(folder)
    assert found
    assert found.items() <= figures(compared).items()


@pytest.mark.slow
def test_failed_cells_are_shown_and_stop_nothing_and_giving_up_is_a_result(tmp_path: Path) -> None:
    choices = ["attack=[ilrg,rgap,{ilrg: {knows_defense: true}}]", "defense=[none,{noise: {sigma: 1e39}}]"]
    done = forked.fedsim("compare", *choices, *SMALL, f"into={tmp_path / 'grid'}", cwd=tmp_path)
    assert done.returncode == 1
    assert "noise_sigma1e_39__0: round 1: none of 2 clients gave a valid reply" in done.stderr
    assert "rgap" not in done.stderr
    page = (tmp_path / "grid" / "report.html").read_text()
    assert "3 cells are not complete" in page
    assert "rgap against none: gave up" in page
    assert "batch of one" in page
    assert "ilrg (knows_defense True): the attacker is told" in page
    assert ("ilrg", "none", "lnacc") in figures(tmp_path / "grid")


def test_a_named_comparison_may_be_changed_in_part() -> None:
    grid = comparison_of(["experiment=defense_leaderboard", "attack=[ilrg]", "federation.rounds=2"])
    assert [choice.label for choice in grid.attacks] == ["ilrg"]
    assert len(grid.defenses) >= 8
    assert grid.common == ("experiment=defense_leaderboard", "federation.rounds=2")
    for name in ("defense_leaderboard", "defense_leaderboard_lenet5"):
        grid = comparison_of([f"experiment={name}"])
        assert len(grid.attacks) >= 5
        assert len(grid.seeds) > 1


def test_the_first_of_the_seeds_may_be_chosen(tmp_path: Path) -> None:
    grid = comparison_of(["attack=[ilrg]", "seeds=3", "seed=40"])
    assert grid.seeds == (40, 41, 42)
    assert grid.common == ()
    named = comparison_of(["experiment=defense_leaderboard", "seed=7"])
    assert named.seeds == (7, 8)
    folder = compare(comparison_of(["attack=[ilrg]", "seed=7", f"into={tmp_path / 'grid'}", *SMALL]))
    (cell,) = read_cells(folder.storage)
    assert cell.seed == 7
    assert "\nseed: 7\n" in RunFolder(folder.path / cell.training).config_text()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["defense=[noise]"], r"expected attack=\[NAME"),
        (["attack=ilrg"], r"expected attack=\[NAME"),
        (["attack=[ilrg]", "defense=noise"], r"expected defense=\[NAME"),
        (["attack=[ilrg]", "seeds=0"], "seeds: expected a whole number"),
        (["attack=[ilrg]", "seed=one"], "seed"),
        (["attack=[ilrg]", "seed=1,2"], "seed"),
        (["attack=[ilrg]", "name=mine"], "name differs from run to run"),
        (["attack=[ilrg,ilrg]"], "'ilrg' is there twice"),
        (["attack=[{ilrg: 3}]"], "expected a name or"),
        (["attack=[ilrg]", "verbose"], "verbose"),
    ],
)
def test_wrong_arguments_are_refused(arguments: list[str], complaint: str) -> None:
    with pytest.raises(FedsimError, match=complaint):
        comparison_of(arguments)


def test_intervals_are_students() -> None:
    assert Entry(values=(1.0,)).interval is None
    assert Entry(values=(1.0, 2.0, 3.0)).interval == pytest.approx(4.302653 / 3**0.5, rel=1e-5)
    assert Entry(values=(1.0, 3.0)).interval is None  # of two, the range
    assert str(Entry(values=(1.0, 3.0))) == "2.000 (1.000 to 3.000)"
    assert str(Entry(values=(1.0, 1.0, 1.0))) == "1.000 ± 0.000"


def test_the_front_is_what_nothing_beats() -> None:
    points = {"none": (0.9, 1.0), "good": (0.8, 0.2), "bad": (0.7, 0.5), "strong": (0.5, 0.1)}
    assert pareto(points, lower_leaks_more=False) == {"none", "good", "strong"}
    assert pareto({"a": (0.5, 0.1), "b": (0.5, 0.9)}, lower_leaks_more=True) == {"b"}


@pytest.mark.slow
@needs_browser
def test_the_page_sorts_in_a_browser(compared: Path) -> None:
    asks = """(() => {
      const heading = document.querySelectorAll("#figures th")[3];
      const rows = () => [...document.querySelectorAll("#figures tbody tr")];
      const column = () => rows().map(row => row.children[3].dataset.value);
      heading.querySelector("button").click(); const down = column();
      heading.querySelector("button").click(); return {down, up: column(), says: heading.ariaSort};
    })()"""
    page = looked_at(compared / "report.html", width=PHONE, asks=asks)
    assert_looks_well(page, width=PHONE)
    assert len(page["pictures"]) >= 4
    found = page["asked"]
    assert found["up"] == sorted(found["up"], key=lambda value: float(value or "-inf"))
    assert found["down"] == sorted(found["down"], key=lambda value: float(value or "-inf"), reverse=True)
    assert found["up"] != found["down"]
    assert found["says"] == "ascending"


def leaderboard(folder: Path) -> list[list[str]]:
    """The rows that benchmarks/leaderboard.py makes of a comparison."""
    page = runpy.run_path(str(ROOT / "benchmarks" / "leaderboard.py"))["page"]([folder])
    rows = [re.split(r" \| ", line.strip("| ")) for line in page.splitlines() if line.startswith("| ")]
    assert rows[0][:2] == ["defense", "attack"]
    return rows[2:]


@pytest.mark.slow
def test_the_leaderboard_has_a_row_with_figures_for_every_attack_and_defense(compared: Path) -> None:
    rows = {(row[1], row[0]): row[2:] for row in leaderboard(compared)}
    assert len(rows) == 9
    assert re.fullmatch(r"\*\*\S+\*\* \(\S+\)", rows["ilrg", "none"][1])  # above its baseline
    assert "**" not in rows["ilrg", "noise (sigma 0.5)"][1]
    assert "defense=[[clip,sparsify]]" in rows["idlg", "clip + sparsify"][-1]


@pytest.mark.slow
def test_the_line_beside_a_figure_gives_it_again(compared: Path, tmp_path: Path) -> None:
    (row,) = [row for row in leaderboard(compared) if row[:2] == ["noise (sigma 0.5)", "ilrg"]]
    program, *arguments = shlex.split(re.sub(r"<.*?>", "", row[-1]))
    assert program == "fedsim"
    assert forked.fedsim(*arguments, cwd=tmp_path).returncode == 0
    (again,) = leaderboard(tmp_path / "again")
    assert again == [cell for cell in row if cell]  # no column for what only other attacks claim
