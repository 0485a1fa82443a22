"""`fedsim export`: one table over many runs, as other tools read it."""

import csv
from pathlib import Path

import pandas
import pytest
from made_runs import made_comparison, made_run, made_sweep

from fedsim.core.errors import FedsimError
from fedsim.report.comparison_grid import Entry
from fedsim.report.export import write_table
from fedsim.report.latex import spread, tex
from fedsim.report.tidy import exported

HOSTILE = "\\input{/etc/passwd} $x_1$ & 50% #1 {~^} <>|\"'` -- 中\x1b"


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_row_is_a_score_with_what_it_came_of(tmp_path: Path, command) -> None:
    made_run(tmp_path / "runs" / "one", federation={"batch_size": 8}, jobs=2)
    made_sweep(tmp_path / "runs" / "sweep")
    made_comparison(tmp_path / "runs" / "comparison")
    (made_run(tmp_path / "runs" / "torn").path / "config.yaml").write_text("x")
    done = command("export", "runs", "--to", "all.csv", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["24 scores of 8 runs", str(tmp_path / "all.csv")]
    assert "left out: runs/torn: " in done.stderr
    rows = table(tmp_path / "all.csv")
    first = next(row for row in rows if row["run"] == "runs/one" and row["client"] == "1")
    assert first["paper"].startswith("Ma et al.")
    del first["paper"]
    assert first == {
        "run": "runs/one",
        "status": "complete",
        "model": "fcn3",
        "data": "mnist_small",
        "attack": "ilrg",
        "defense": "none",
        "seed": "0",
        "round": "1",
        "client": "1",
        "batch_size": "5",  # that was seen; the config asked for more
        "metric": "lnacc",
        "title": "label number accuracy",
        "value": "0.75",
        "baseline": "0.25",
        "error": "",
        "setting federation.batch_size": "8",
    }
    assert {row["defense"] for row in rows} == {"none", "noise (sigma 0.1)"}
    whole = [row for row in rows if row["metric"] == "accuracy"]
    assert len(whole) == 8
    assert {(row["round"], row["client"], row["baseline"]) for row in whole} == {("", "", "")}
    fewer = command("export", "runs/sweep", "--to", "lnacc.csv", "--metrics", "lnacc", cwd=tmp_path)
    assert fewer.stdout.startswith("6 scores of 3 runs")


def test_parquet_has_a_type_for_every_column(tmp_path: Path) -> None:
    made_sweep(tmp_path / "sweep")
    write_table(tmp_path / "all.parquet", exported([tmp_path / "sweep"]))
    frame = pandas.read_parquet(tmp_path / "all.parquet")
    assert frame["value"].dtype == "Float64"
    assert frame["batch_size"].dropna().unique().tolist() == [5]
    assert frame[frame.metric == "lnacc"].groupby("seed")["value"].mean().tolist() == [0.5, 0.625, 0.75]


def test_a_latex_table_has_baselines_and_intervals_or_ranges(tmp_path: Path) -> None:
    made_sweep(tmp_path / "sweep")
    made_comparison(tmp_path / "comparison", label="noise_1 & co")
    found = exported([tmp_path / "sweep", tmp_path / "comparison"])
    write_table(tmp_path / "table.tex", found)
    text = (tmp_path / "table.tex").read_text()
    assert text.count(r"\\") == 1 + 2  # the heading, and a line for each defense
    assert r"none & label number accuracy & $0.625$ $\pm$ $0.311$ & $0.250$ & 3 \\" in text
    assert r"noise\_1 \& co & label number accuracy & $0.625$ ($0.500$ to $0.750$) & $0.250$ & 2 \\" in text
    assert r"\caption{attack ilrg, model fcn3, data mnist\_small. Means" in text
    for command in (r"\toprule", r"\midrule", r"\bottomrule", r"\addlinespace"):
        assert text.count(command) == 1


def test_an_attack_with_random_numbers_of_its_own_is_one_line_over_the_seeds(tmp_path: Path) -> None:
    for seed in range(3):
        own = {"_target_": "x", "seed": seed, "restarts": 2}
        made_run(tmp_path / f"{seed}", seed=seed, lnacc=0.5 + 0.125 * seed, config_attack=own)
    write_table(tmp_path / "table.tex", exported([tmp_path / f"{seed}" for seed in range(3)]))
    text = (tmp_path / "table.tex").read_text()
    assert "attack.seed" not in text
    assert "label number accuracy & " in text
    for seed in range(3):
        made_run(tmp_path / f"psnr{seed}", seed=seed, metric="psnr")
    write_table(tmp_path / "psnr.tex", exported([tmp_path / f"psnr{seed}" for seed in range(3)]))
    assert "likeness of images (dB, PSNR) & " in (tmp_path / "psnr.tex").read_text()
    assert r"$0.625$ $\pm$ $0.311$ & $0.250$ & 3" in text


def test_spread_is_an_interval_from_three_runs_on() -> None:
    assert spread(Entry(values=(1.0,))) == "$1.000$"
    assert spread(Entry(values=(1.0, 2.0))) == "$1.500$ ($1.000$ to $2.000$)"
    assert spread(Entry(values=(1.0, 2.0, 3.0))) == r"$2.000$ $\pm$ $2.484$"
    assert spread(Entry(values=(12345.0,))) == "$12{,}345$"


def test_words_of_others_are_no_commands_of_latex(tmp_path: Path) -> None:
    assert tex("a_b") == r"a\_b"
    escaped = tex(HOSTILE)
    left = escaped
    for command in (
        "textbackslash{}",
        "textasciicircum{}",
        "textasciitilde{}",
        "textless{}",
        "textgreater{}",
    ):
        left = left.replace(f"\\{command}", "")
    for command in ("textbar{}", "textquotedbl{}", "textquotesingle{}", "textasciigrave{}"):
        left = left.replace(f"\\{command}", "")
    for letter in "{}$&#%_":
        left = left.replace(f"\\{letter}", "")
    assert not set("\\$&#%_^~") & set(left.replace("{-}", ""))
    assert "U+4E2D" in escaped
    assert escaped.isascii()
    assert "\x1b" not in escaped
    made_run(tmp_path / "run", attack=HOSTILE, metric=HOSTILE)
    write_table(tmp_path / "table.tex", exported([tmp_path / "run"]))
    assert escaped.replace("\x1b", "") in (tmp_path / "table.tex").read_text()


def test_figures_are_files_of_their_own(tmp_path: Path, command) -> None:
    made_sweep(tmp_path / "sweep")
    for form, start in (("svg", b"<?xml"), ("pdf", b"%PDF")):
        done = command("export", "sweep", "--figures", "figures", "--format", form, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        files = [Path(line) for line in done.stdout.splitlines()]
        assert {path.name for path in files} == {f"bars_{name}.{form}" for name in ("lnacc", "accuracy")}
        assert all(path.read_bytes().startswith(start) for path in files)
        assert {path.parent for path in files} == {tmp_path / "figures" / "sweep"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run"], "expected --to FILE, --figures FOLDER"),
        (["run", "--to", "x.xlsx"], "expected a name that ends in .csv, .parquet, .tex"),
        (["run", "--to", "run/scores.csv"], "is a run folder. Remedy"),
        (["run", "--figures", "run/figures"], "that is in a run folder. Remedy"),
        (["run", "--to", "x.csv", "--metrics", "psnr"], "none of the runs has a score of psnr"),
        (["nothing", "--to", "x.csv"], "expected a folder of runs, got none"),
        (["empty", "--to", "x.csv"], "no scored run in empty"),
    ],
)
def test_wrong_arguments_are_refused(tmp_path: Path, command, arguments: list[str], words: str) -> None:
    made_run(tmp_path / "run")
    (tmp_path / "empty").mkdir()
    done = command("export", *arguments, cwd=tmp_path)
    assert done.returncode == 1
    assert words in done.stderr
    assert not (tmp_path / "x.csv").exists()


def test_a_score_that_cannot_be_read_is_a_row_that_says_so(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run")
    (run.path / "scores.csv").write_text("torn")
    write_table(tmp_path / "all.csv", exported([run.path]))
    (row,) = table(tmp_path / "all.csv")
    assert "changed or damaged" in row["error"]
    with pytest.raises(FedsimError, match="none of the runs has a score of lnacc"):
        write_table(tmp_path / "all.csv", exported([run.path]), ["lnacc"])
