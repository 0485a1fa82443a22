"""`fedsim check` as a user types it: a table, a verdict, an exit status."""

from pathlib import Path

import pytest

MINE = """\
# @package _global_
# My table
defaults:
  - override /data: synthetic
  - override /model: softmax
data: {shape: [1, 8, 8], num_classes: 4, train_size: 160, test_size: 40}
federation: {rounds: 1, clients: 2, batch_size: 6}
"""
SWEEP = "kind: sweep\nhydra: {sweeper: {params: {federation.batch_size: '4,6'}}}\n"
GOOD = "minutes: 0.1\nexpected:\n  - {where: {federation.batch_size: 6}, figure: lnacc, range: [0.5, 1]}\n"
BAD = "minutes: 0.2\nexpected:\n  - {figure: lnacc, range: [0.5, 1]}\n  - {figure: accuracy, range: [2, 3]}\n"


@pytest.fixture
def own(tmp_path: Path, monkeypatch) -> Path:
    """A folder of one's own experiments."""
    folder = tmp_path / "own" / "experiment"
    folder.mkdir(parents=True)
    for name, text in {
        "good": MINE + GOOD,
        "bad": MINE + BAD,
        "swept": MINE + SWEEP + GOOD,
        "silent": MINE,
        "refused": MINE + "attack: {rounding: up}\n" + GOOD,
        "hopeless": MINE.replace("softmax\n", "softmax\n  - override /attack: rgap\n") + GOOD,
        "misspelt": MINE + GOOD.replace("range", "rnage"),
    }.items():
        (folder / f"{name}.yaml").write_text(text)
    monkeypatch.setenv("FEDSIM_CONF", str(folder.parent))
    return folder.parent


def test_figures_within_their_ranges_are_status_0_and_others_1(own, tmp_path, command) -> None:
    good = command("check", "experiment=good", "hydra.run.dir=run", "seed=3", cwd=tmp_path)
    assert good.returncode == 0, good.stderr
    assert good.stdout.splitlines()[-1] == f"good: 1 of 1 figures within their ranges ({tmp_path}/run)"
    config = (tmp_path / "run" / "config.yaml").read_text()
    assert "seed: 3" in config
    assert "expected" not in config
    there = command("check", "run", "experiment=bad", cwd=tmp_path)
    assert there.returncode == 1, there.stderr
    assert "1 of 2 figures within" in there.stdout
    assert "outside" in there.stdout
    assert command("replay", "run", "hydra.run.dir=again", cwd=tmp_path).returncode == 0
    twice = command("check", "experiment=good", "hydra.run.dir=run", "seed=4", cwd=tmp_path)
    assert twice.returncode == 3  # the figures that are there are of another seed
    assert "already holds a run" in twice.stderr
    wrong = command("check", "run", "experiment=swept", cwd=tmp_path)
    assert wrong.returncode == 3
    assert "expected a sweep, as swept is, got a run" in wrong.stderr


@pytest.mark.slow
def test_several_experiments_are_checked_each_in_a_folder(own, tmp_path, command) -> None:
    done = command("check", "experiment=swept,refused,bad", cwd=tmp_path)
    assert done.returncode == 3, done.stdout
    *_, swept, refused, bad = done.stdout.splitlines()
    assert swept.startswith("swept: 1 of 1 figures within their ranges")
    assert refused == "refused: could not be judged"
    assert bad.startswith("bad: 1 of 2 figures within their ranges")
    assert "attack.rounding: expected repair or nearest" in done.stderr
    assert len(list((tmp_path / "runs").glob("*/*_swept/[01]_*/scores.csv"))) == 2


def test_a_run_that_gave_up_has_missing_figures(own, tmp_path, command) -> None:
    done = command("check", "experiment=hopeless", cwd=tmp_path)
    assert done.returncode == 1, done.stdout
    assert "gave up" in done.stdout
    assert "missing" in done.stdout
    assert "0 of 2 figures within" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["check"], "expected experiment=NAME, experiment=A,B or --under MINUTES"),
        (["check", "experiment=good", "--under", "1"], "one of them"),
        (["check", "--under", "soon"], "not a valid float"),
        (["check", "--under", "0.001"], "no experiment says that it takes at most 0.001 minutes"),
        (["check", "experiment=godo"], "experiment=godo: no such yaml. Did you mean good"),
        (["check", "experiment=silent"], "nothing is expected of it. Remedy"),
        (["check", "experiment=misspelt"], "experiment=misspelt: expected[0]: expected figure and range"),
        (["check", "experiment=good", "sede=1"], "no setting 'sede'. Did you mean seed"),
        (["check", "experiment=good,bad", "hydra.run.dir=x"], "several experiments need a folder each"),
        (["check", "nowhere", "experiment=good"], "is not a run folder"),
        (["check", "own", "experiment=good", "seed=1"], "expected FOLDER experiment=NAME"),
    ],
)
def test_a_mistake_is_status_3(arguments: list[str], words: str, own, tmp_path, command) -> None:
    done = command(*arguments, cwd=tmp_path)
    assert done.returncode == 3, done.stdout
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()


def test_help_says_how_it_ends(tmp_path, command) -> None:
    said = command("check", "--help", cwd=tmp_path)
    assert said.returncode == 0
    for word in ("--under MINUTES", "0 all within", "1 one outside or missing", "3 could not be judged"):
        assert word in " ".join(said.stdout.split())


def test_the_catalogue_shows_time_and_figures(own, tmp_path, command) -> None:
    said = command("list", "experiment", cwd=tmp_path).stdout
    assert "fedsim experiment=good (0.1 minutes)" in said
    assert "figures: lnacc 0.5 to 1 (federation.batch_size=6)" in said
    assert "not readable: misspelt.yaml: expected[0]" in said


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ilrg_table1", "ilrg_table5", "pol_figure5", "pol_table2"])
def test_a_quick_experiment_gives_the_figures_that_it_expects(name: str, tmp_path: Path, command) -> None:
    done = command("check", f"experiment={name}", "seed=2026", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
