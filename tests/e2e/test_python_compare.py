"""A comparison from Python: every attack against every defense, as data frames."""

from pathlib import Path

import pandas

import fedsim

SMALL = {"data": "synthetic", "data.shape": [1, 8, 8], "data.num_classes": 4, "data.train_size": 120}


def test_a_comparison_comes_back_as_runs(tmp_path: Path) -> None:
    attacks, defenses = ["ilrg", "idlg"], ["none", {"noise": {"sigma": 0.3}}]
    told = {"model": "softmax", "rounds": 1, "clients": 1, "batch_size": 6, "metric": ["leacc"], **SMALL}
    cells = fedsim.compare(attack=attacks, defense=defenses, into=tmp_path / "all", jobs=1, **told)
    assert len(cells.runs) == 4
    assert cells.report.is_file()
    for name, run in cells.runs.items():
        written = pandas.read_csv(run.path / "scores.csv")
        expected = written[written.metric == "leacc"].value.mean()
        assert cells.means.loc[name, "leacc"] == expected
        assert cells.scores.loc[name].query("metric == 'leacc'").value.mean() == expected
    assert sorted(name.rpartition("_")[0].partition("_against_")[2][:5] for name in cells.runs) == [
        "noise",
        "noise",
        "none",
        "none",
    ]
    assert set(cells.scores.attack) == {"ilrg", "idlg"}
