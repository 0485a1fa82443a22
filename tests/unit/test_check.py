"""The checker of expected figures: what is within, outside or missing, and that nothing else passes."""

import math
from pathlib import Path

import pytest

from fedsim.core.errors import FedsimError
from fedsim.core.expectation import read_expectations, read_minutes
from fedsim.core.types import RoundResult
from fedsim.lab.check import Outcome, check_folder
from fedsim.storage.comparison import Cell, write_cells
from fedsim.storage.findings import Finding, keep_finding
from fedsim.storage.runfolder import RunFolder
from fedsim.storage.scores import ScoreRow

WITHIN, OUTSIDE, MISSING = Outcome.WITHIN, Outcome.OUTSIDE, Outcome.MISSING


def run_at(
    path: Path, attack: str = "ilrg", batch: int = 24, status: str = "complete", **metrics
) -> RunFolder:
    """A run folder with a config and a summary, as a run leaves them."""
    folder = RunFolder(path)
    text = (
        f"choices: {{attack: {attack}}}\nfederation: {{batch_size: {batch}, rate: 1.0e-05}}\ndefense: {{}}\n"
    )
    folder.begin("run", text)
    folder.write_summary({"name": "x", "status": status, "reason": "because", "metrics": metrics})
    return folder


def sweep_at(path: Path, status: str = "complete") -> RunFolder:
    folder = RunFolder(path)
    folder.begin("sweep", "name: sweep\n")
    folder.write_summary({"name": "x", "status": status, "reason": "", "metrics": {}})
    return folder


def outcomes(folder: RunFolder, *entries: dict[str, object]) -> list[Outcome]:
    return [one.outcome for one in check_folder(folder, read_expectations(list(entries), "test"))]


def test_a_figure_is_within_or_outside_of_a_closed_range(tmp_path: Path) -> None:
    folder = run_at(tmp_path, lnacc=0.95)
    assert outcomes(folder, {"figure": "lnacc", "range": [0.95, 1]}) == [WITHIN]
    assert outcomes(folder, {"figure": "lnacc", "range": [0, 0.95]}) == [WITHIN]
    assert outcomes(folder, {"figure": "lnacc", "range": [0.96, 1]}) == [OUTSIDE]
    assert outcomes(folder, {"figure": "lnacc", "range": [0, "9.4e-1"]}) == [OUTSIDE]


@pytest.mark.parametrize("value", [None, math.nan])
def test_what_is_no_number_is_missing(value, tmp_path: Path, monkeypatch) -> None:
    folder = run_at(tmp_path, lnacc=1.0)
    summary = folder.summary() | {"metrics": {"lnacc": value}}
    monkeypatch.setattr(RunFolder, "summary", lambda self: summary)  # none is ever written with a NaN
    assert outcomes(folder, {"figure": "lnacc", "range": [-math.inf, math.inf]}) == [MISSING]


def test_an_absent_figure_or_run_is_missing(tmp_path: Path) -> None:
    folder = run_at(tmp_path, lnacc=1.0)
    assert outcomes(folder, {"figure": "psnr", "range": [0, 200]}) == [MISSING]
    other = {"where": {"attack": "idlg"}, "figure": "lnacc", "range": [0, 1]}
    unknown = {"where": {"atack": "ilrg"}, "figure": "lnacc", "range": [0, 1]}
    assert outcomes(folder, other, unknown) == [MISSING, MISSING]


@pytest.mark.parametrize("status", ["gave up", "failed", "interrupted", "running"])
def test_a_run_that_did_not_complete_has_no_figures(status: str, tmp_path: Path) -> None:
    folder = run_at(tmp_path, status=status, lnacc=1.0)
    first, second = check_folder(folder, read_expectations([{"figure": "lnacc", "range": [0, 1]}], "test"))
    assert (first.figure, first.outcome, second.outcome) == ("status", MISSING, MISSING)
    assert second.shown == f"{status}: because"


def test_a_sweep_is_judged_run_by_run(tmp_path: Path) -> None:
    folder = sweep_at(tmp_path)
    run_at(tmp_path / "0_a", "ilrg", 8, lnacc=1.0)
    run_at(tmp_path / "1_b", "ilrg", 24, lnacc=0.8)
    run_at(tmp_path / "2_c", "idlg", 24, leacc=0.5)
    run_at(tmp_path / "3_d", "stein", 24, status="gave up")
    whole = {"attack": "ilrg"}
    one = {"attack": "ilrg", "federation.batch_size": 24.0, "federation.rate": "1e-5"}
    entries = [
        {"where": whole, "figure": "lnacc", "range": [0.75, 1]},
        {"where": whole, "figure": "lnacc", "range": [0.9, 1]},
        {"where": whole, "figure": "lnacc", "take": "mean", "range": [0.9, 0.9]},
        {"where": whole, "figure": "lnacc", "take": "lowest", "range": [0.8, 0.8]},
        {"where": whole, "figure": "lnacc", "take": "highest", "range": [0.8, 0.8]},
        {"where": whole, "figure": "lnacc", "take": "sum", "range": [1.8, 1.8]},
        {"where": one, "figure": "lnacc", "range": [0.8, 0.8]},
        {"where": {"attack": "i*"}, "figure": "lnacc", "range": [0, 1]},  # iDLG has no LnAcc
        {"where": {"attack": "stein"}, "figure": "lnacc", "range": [0, 1]},  # gave up
        {"figure": "leacc", "range": [0, 1]},
    ]
    expected = [WITHIN, OUTSIDE, WITHIN, WITHIN, OUTSIDE, WITHIN, WITHIN, MISSING, MISSING, MISSING]
    assert outcomes(folder, *entries) == expected


@pytest.mark.parametrize("status", ["failed", "interrupted", "running"])
def test_a_sweep_that_lacks_runs_does_not_pass_by_those_that_there_are(status: str, tmp_path: Path) -> None:
    folder = sweep_at(tmp_path, status)
    run_at(tmp_path / "0_a", lnacc=1.0)
    assert outcomes(folder, {"figure": "lnacc", "range": [0, 1]}) == [MISSING, WITHIN]


def test_a_cell_of_a_comparison_that_never_ran_is_missing(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.begin("comparison", "name: comparison\ncommon: []\n")
    folder.write_summary({"name": "x", "status": "complete", "reason": "", "metrics": {}})
    cells = [Cell.of("ilrg", "none", 0), Cell.of("ilrg", "noise (sigma 0.1)", 0)]
    write_cells(folder.storage, cells)
    run_at(tmp_path / cells[0].folder, lnacc=1.0)
    there = {"where": {"attack": "ilrg", "defense": "none"}, "figure": "lnacc", "range": [1, 1]}
    absent = {"where": {"defense": "noise (sigma 0.1)"}, "figure": "lnacc", "range": [0, 1]}
    assert outcomes(folder, there, absent) == [WITHIN, MISSING]


def test_a_round_has_figures_of_its_own(tmp_path: Path) -> None:
    folder = run_at(tmp_path, lnacc=0.5)
    rows = [ScoreRow(round=r, client=c, attack="ilrg", metric="lnacc", value=v) for r, c, v in
            ((1, 0, 1.0), (1, 1, 0.5), (9, 0, 0.25))]  # fmt: skip
    folder.write_scores(rows)
    folder.keep_round(RoundResult(round=9, accuracy=0.7, loss=1.0, seconds=1.0))
    entries = [
        {"where": {"round": 1}, "figure": "lnacc", "range": [0.75, 0.75]},
        {"where": {"round": 9}, "figure": "accuracy", "range": [0.7, 0.7]},
        {"where": {"round": 1}, "figure": "accuracy", "range": [0, 1]},
        {"where": {"round": 5}, "figure": "lnacc", "range": [0, 1]},
        {"figure": "lnacc", "range": [0.5, 0.5]},
    ]
    assert outcomes(folder, *entries) == [WITHIN, WITHIN, MISSING, MISSING, WITHIN]


def test_a_calibrations_figures_are_found_by_their_case(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.begin("calibration", "name: x\n")
    for case, value in (("b=10, the same", 0.0), ("b=10, threads", 1e-8), ("b=100, the same", math.nan)):
        keep_finding(folder.storage, Finding(study="s", case=case, figure="largest l2", value=value))
    folder.write_summary({"name": "x", "status": "complete", "reason": "", "metrics": {}})
    small = {"where": {"case": "b=10, *"}, "figure": "largest l2", "take": "highest", "range": [1e-9, 1e-7]}
    exact = {"where": {"case": "b=10, the same"}, "figure": "largest l2", "range": [0, 0]}
    nan = {"where": {"case": "b=100, *"}, "figure": "largest l2", "range": [0, math.inf]}
    none = {"where": {"case": "b=1, *"}, "figure": "largest l2", "range": [0, math.inf]}
    assert outcomes(folder, small, exact, nan, none) == [WITHIN, WITHIN, MISSING, MISSING]


@pytest.mark.parametrize(
    ("listed", "words"),
    [
        ("lnacc", "expected: expected a list"),
        ([{"figure": "lnacc"}], "expected figure and range"),
        ([{"figure": "lnacc", "range": [1, 0]}], r"range: expected \[least, most\]"),
        ([{"figure": "lnacc", "range": [0, math.nan]}], r"range: expected \[least, most\]"),
        ([{"figure": "lnacc", "range": [0, True]}], r"range: expected \[least, most\]"),
        ([{"figure": "lnacc", "range": 1}], r"range: expected \[least, most\]"),
        ([{"figure": "lnacc", "range": [0, 1], "were": {}}], "no key 'were'. Did you mean where"),
        ([{"figure": "lnacc", "range": [0, 1], "where": "ilrg"}], "where: expected settings"),
        ([{"figure": "lnacc", "range": [0, 1], "take": "best"}], "take: expected one of each, mean"),
    ],
)
def test_a_malformed_expectation_is_refused(listed, words: str) -> None:
    with pytest.raises(FedsimError, match=words):
        read_expectations(listed, "experiment=mine")


def test_minutes_are_a_positive_number() -> None:
    assert read_minutes(None, "mine") is None
    assert read_minutes("0.5", "mine") == 0.5
    for wrong in (0, -1, "soon", math.inf, True):
        with pytest.raises(FedsimError, match="minutes: expected a positive number"):
            read_minutes(wrong, "mine")
