"""One client's reply must not take a metric away from all the others."""

import dataclasses
import math
from pathlib import Path
from statistics import fmean

import pytest
import torch

from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Attack, Metric
from fedsim.core.types import Reconstruction, Score
from fedsim.lab.assess import FAULT
from fedsim.lab.experiment import replay
from fedsim.storage.runfolder import RunFolder
from fedsim.storage.scores import ScoreRow, metric_lines

RUN = ("model=mlp", "model.width=20", "federation.rounds=1", "attack=none")
ATTACK = ("model=mlp", "model.width=20", "federation.rounds=1", "attack=ilrg")


def test_a_denormal_bias_gradient_costs_its_own_client_the_score(play_small, small, tmp_path: Path) -> None:
    folder = play_small(*RUN)
    seen = folder.observation(1, 1)
    name = [name for name in seen.received if name.endswith("bias")][-1]
    lied = seen.received | {name: torch.full_like(seen.received[name], 1e-42)}
    folder.keep_observation(dataclasses.replace(seen, received=lied))
    metrics = "metric=[leacc,embedding_cosine,probability_cosine]"
    attacked = replay(small(*ATTACK, metrics), folder, tmp_path / "replay")
    summary, rows = attacked.summary(), attacked.scores()
    assert summary["status"] == "complete"
    assert summary["faults"] == 1
    assert [(row.client, "expected finite" in row.error) for row in rows if row.metric == FAULT] == [
        (1, True)
    ]
    for metric in ("leacc", "embedding_cosine", "probability_cosine"):
        values = [row.value for row in rows if row.metric == metric]
        assert len(values) == 2
        assert summary["metrics"][metric] == pytest.approx(fmean(values))  # type: ignore[type-var]


class Fickle(Metric):
    """A metric that gives no number for some batch."""

    def __init__(self, value: float, baseline: float) -> None:
        self.figures = iter([(0.25, 0.5), (value, baseline), (0.75, 0.5)])

    def score(self, guess: Reconstruction, truth: object) -> Score:
        value, baseline = next(self.figures)
        return Score(metric="fickle", value=value, baseline=baseline)


@pytest.mark.parametrize(("value", "baseline"), [(math.nan, 0.5), (math.inf, 0.5), (0.5, math.nan)])
def test_a_score_that_is_no_number_is_a_fault_of_one_client(
    play_small, small, tmp_path: Path, value: float, baseline: float
) -> None:
    experiment = dataclasses.replace(small(*ATTACK), metrics=(Fickle(value, baseline),))
    attacked = replay(experiment, play_small(*RUN), tmp_path / "replay")
    assert attacked.summary()["metrics"]["fickle"] == 0.5
    assert attacked.summary()["baseline"]["fickle"] == 0.5
    faults = [row for row in attacked.scores() if row.metric == FAULT]
    assert [
        (row.client, row.error.startswith("metric Fickle failed: fickle: expected")) for row in faults
    ] == [(1, True)]


class Elsewhere(Attack):
    """An attack that speaks of a layer that is not there."""

    def run(self, model: object, task: object, observations: object) -> Reconstruction:
        return Reconstruction(
            class_counts=torch.tensor([2, 2, 1, 1]), embeddings=torch.ones(6, 3), embedding_layer="nowhere"
        )


def test_features_that_cannot_be_had_leave_the_other_metrics(play_small, small, tmp_path: Path) -> None:
    experiment = dataclasses.replace(small(*ATTACK, "metric=[lnacc,embedding_error]"), attack=Elsewhere())
    attacked = replay(experiment, play_small(*RUN), tmp_path / "replay")
    metrics = attacked.summary()["metrics"]
    assert metrics["lnacc"] is not None
    assert "embedding_error" not in metrics
    faults = [row for row in attacked.scores() if row.metric == FAULT]
    assert [row.client for row in faults] == [0, 1, 2]
    assert all("features of the truth failed" in row.error for row in faults)


def row(client: int, value: float | None, baseline: float | None = 0.5) -> ScoreRow:
    return ScoreRow(round=1, client=client, attack="ilrg", metric="psnr", value=value, baseline=baseline)


def test_lines_that_hold_no_number_do_not_count(tmp_path: Path) -> None:
    rows = [row(0, 10.0), row(1, math.nan), row(2, 20.0, math.inf), row(3, math.inf), row(4, None, None)]
    folder = RunFolder(tmp_path)
    folder.write_scores(rows)
    (line,) = metric_lines(folder.scores())
    assert (line.mean, line.lowest, line.highest, line.number, line.baseline) == (15.0, 10.0, 20.0, 2, 0.5)
    assert metric_lines([row(0, math.nan)]) == []


@pytest.mark.parametrize("number", [math.nan, math.inf])
@pytest.mark.parametrize("part", ["images", "embeddings", "probabilities"])
def test_what_an_attack_recovers_is_finite(part: str, number: float) -> None:
    with pytest.raises(FedsimError, match=f"{part}: expected finite numbers"):
        Reconstruction(**{part: torch.full((1, 1, 2, 2), number)})


def test_scores_without_their_baselines_are_kept_and_it_is_said(play_small, monkeypatch) -> None:
    def unreadable(*_: object) -> None:
        raise OSError("the server's images are gone")

    monkeypatch.setattr("fedsim.lab.assess.prior_of", unreadable)
    folder = play_small(*ATTACK)
    assert "lnacc" in folder.summary()["metrics"]
    assert folder.summary()["baseline"] == {}
    assert any("baselines failed" in row.error for row in folder.scores() if row.metric == "fault")
