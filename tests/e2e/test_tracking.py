"""MLflow and TensorBoard hear of runs, offline; what goes wrong there loses none."""

import sys
from pathlib import Path
from typing import Any

import pytest
from small_settings import SMALL

from fedsim.config.compose import compose
from fedsim.config.parts import part
from fedsim.config.trust import check_trusted
from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Tracker
from fedsim.storage.runfolder import RunFolder
from fedsim.storage.status import Status

HEARD: list[tuple[str, Any]] = []


class Listener(Tracker):
    """Remembers what it is told, and fails where it is told to."""

    def __init__(self, *, fails: str = "") -> None:
        self.fails = fails
        HEARD.clear()

    def begin(self, name: str, settings: Any, folder: Path) -> None:
        self._hear("begin", (name, settings, folder))

    def round(self, result: Any) -> None:
        self._hear("round", result.round)

    def end(self, status: str, scores: Any, files: Any) -> None:
        self._hear("end", (status, scores, files))

    def _hear(self, what: str, told: Any) -> None:
        HEARD.append((what, told))
        if what == self.fails:
            raise ConnectionError("nobody there")


@pytest.fixture
def listening(monkeypatch) -> str:
    monkeypatch.setitem(sys.modules, "listener", sys.modules[__name__])
    return "tracking=listener.Listener"


def test_a_tracker_hears_of_settings_rounds_scores_and_files(play_small, listening: str) -> None:
    folder = play_small(listening)
    (begin, (name, settings, place)), *rounds, (end, (status, scores, files)) = HEARD
    assert (begin, name, place) == ("begin", "test", folder.path)
    assert settings["attack"] == "ilrg"
    assert settings["federation.batch_size"] == "6"
    assert rounds == [("round", 0), ("round", 1), ("round", 2)]
    summary = folder.summary()
    assert (end, status) == ("end", "complete")
    assert scores["lnacc"] == summary["metrics"]["lnacc"]
    assert scores["baseline/lnacc"] == summary["baseline"]["lnacc"]
    assert {*files} == {"report.html", "scores.csv", "config.yaml", "summary.json"}
    assert all(path.is_file() for path in files.values())


@pytest.mark.parametrize(
    "fails", ["round", *(pytest.param(what, marks=pytest.mark.slow) for what in ("begin", "end"))]
)
def test_a_tracker_that_fails_is_logged_and_loses_nothing(play_small, listening: str, fails: str) -> None:
    folder = play_small(listening, f"tracking.fails={fails}")
    assert folder.status is Status.COMPLETE
    assert folder.scores()
    assert [what for what, _ in HEARD].count(fails) == 1
    assert HEARD[-1][0] == fails  # no more is told to it
    log = (folder.path / "log.txt").read_text()
    assert log.count("the run goes on without it: ConnectionError: nobody there") == 1


def test_a_run_that_fails_is_told_as_such(play_small, listening: str) -> None:
    with pytest.raises(FedsimError):
        play_small(listening, "federation.labels=one_per_class", "federation.batch_size=100")
    assert HEARD[-1][1][0] == "failed"


def test_a_stored_config_tells_nobody_unless_the_user_allows_it() -> None:
    config = compose([*SMALL])
    check_trusted(config, ())
    config.tracking = {"_target_": "fedsim.tracking.mlflow.MLflow", "uri": "http://elsewhere"}
    with pytest.raises(FedsimError, match=r"tell others of the run\. Remedy.*allow=fedsim\.tracking\.mlflow"):
        check_trusted(config, ())
    for arguments, allowed in [
        ((), ["fedsim.tracking"]),
        (["tracking=mlflow"], ()),
        (["tracking.uri=x"], ()),
    ]:
        check_trusted(config, arguments, allowed)


@pytest.mark.parametrize(
    ("name", "missing"), [("mlflow", "mlflow"), ("tensorboard", "torch.utils.tensorboard")]
)
def test_a_missing_extra_is_said_before_anything_is_trained(
    tmp_path: Path, command, monkeypatch, name: str, missing: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    done = command(*SMALL, f"tracking={name}", "hydra.run.dir=run", cwd=tmp_path)
    assert done.returncode == 1
    assert f"tracking={name}: {name} is not installed" in done.stderr
    assert "Remedy: pip install 'fedsim-lab[tracking]'" in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("mlflow", {"uri": 3}, "tracking.uri: expected a word"),
        ("mlflow", {"files": "yes"}, "tracking.files: expected true or false"),
        ("tensorboard", {"folder": "../x"}, "tracking.folder: expected the name of a folder"),
    ],
)
def test_wrong_settings_are_refused(name: str, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(FedsimError, match=words):
        part("tracking", name, **settings)


@pytest.mark.slow
def test_mlflow_has_parameters_curves_scores_and_the_report(play_small, tmp_path: Path, monkeypatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)  # where MLflow keeps files of a store that is no server
    address = f"sqlite:///{tmp_path}/mlflow.db"
    folder = play_small("tracking=mlflow", f"tracking.uri={address}")
    log = (folder.path / "log.txt").read_text()
    assert "tracking" not in log
    assert "round 2: test accuracy" in log  # MLflow's own logging has not taken its place
    client = mlflow.MlflowClient(tracking_uri=address)
    (run,) = client.search_runs([client.get_experiment_by_name("fedsim").experiment_id])
    assert (run.info.status, run.info.run_name) == ("FINISHED", "test")
    assert run.data.params["attack"] == "ilrg"
    assert run.data.tags["fedsim.folder"] == str(folder.path)
    curve = client.get_metric_history(run.info.run_id, "accuracy")
    assert [(point.step, point.value) for point in curve] == [
        (result.round, result.accuracy) for result in folder.history()
    ]
    summary = folder.summary()
    assert run.data.metrics["final/lnacc"] == summary["metrics"]["lnacc"]
    assert run.data.metrics["final/baseline/lnacc"] == summary["baseline"]["lnacc"]
    assert {file.path for file in client.list_artifacts(run.info.run_id)} >= {"report.html", "config.yaml"}


def test_tensorboard_has_curves_scores_and_settings_in_the_run_folder(play_small) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = play_small("tracking=tensorboard")
    events = EventAccumulator(str(folder.path / "tensorboard"))
    events.Reload()
    assert [(point.step, point.value) for point in events.Scalars("accuracy")] == [
        (result.round, pytest.approx(result.accuracy)) for result in folder.history()
    ]
    summary = folder.summary()
    (final,), (baseline,) = events.Scalars("final/lnacc"), events.Scalars("final/baseline/lnacc")
    assert (final.step, final.value) == (2, pytest.approx(summary["metrics"]["lnacc"]))
    assert baseline.value == pytest.approx(summary["baseline"]["lnacc"])
    assert {"settings/text_summary", "status/text_summary"} <= {*events.Tags()["tensors"]}
    assert RunFolder(folder.path).status is Status.COMPLETE  # strangers' files in it are no damage
