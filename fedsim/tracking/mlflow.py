"""MLflow: parameters, a curve for every round's figures, final scores beside baselines, the report."""

import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Tracker
from fedsim.core.settings import switch, word
from fedsim.core.types import RoundResult

LONGEST = 500  # letters of a parameter's value
AT_ONCE = 100  # parameters that one call takes
ENDS = {"complete": "FINISHED", "gave up": "FINISHED", "interrupted": "KILLED"}  # others: FAILED


class MLflow(Tracker):
    """An MLflow server or store: a run of its own for every run, with settings, curves, scores and report."""

    def __init__(self, *, uri: str | None = None, experiment: str = "fedsim", files: bool = True) -> None:
        if uri is not None:
            word("tracking.uri", uri)
        self.uri = uri  # None: MLFLOW_TRACKING_URI, or MLflow's own default in the working folder
        self.experiment = word("tracking.experiment", experiment)
        self.files = switch(
            "tracking.files", files
        )  # the report shows private images where attacks are scored
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        try:
            self._mlflow: Any = importlib.import_module("mlflow")
        except ImportError as error:
            raise FedsimError(
                f"tracking=mlflow: mlflow is not installed ({error}). "
                "Remedy: pip install 'fedsim-lab[tracking]', or tracking=none."
            ) from error
        self._client: Any = None
        self._run = ""

    def begin(self, name: str, settings: Mapping[str, str], folder: Path) -> None:
        """Open a run of MLflow's, and name the settings as its parameters."""
        self._client = self._mlflow.MlflowClient(tracking_uri=self.uri)
        known = self._client.get_experiment_by_name(self.experiment)
        place = known.experiment_id if known else self._client.create_experiment(self.experiment)
        tags = {"fedsim.folder": str(folder)}
        self._run = self._client.create_run(place, run_name=name, tags=tags).info.run_id
        parameter, listed = self._mlflow.entities.Param, list(settings.items())
        for start in range(0, len(listed), AT_ONCE):
            params = [
                parameter(_name(key), value[:LONGEST]) for key, value in listed[start : start + AT_ONCE]
            ]
            self._client.log_batch(self._run, params=params)

    def round(self, result: RoundResult) -> None:
        """Add a point to the curves of accuracy and loss."""
        self._log({"accuracy": result.accuracy, "loss": result.loss}, result.round)

    def end(self, status: str, scores: Mapping[str, float], files: Mapping[str, Path]) -> None:
        """Add final scores and baselines, the files, and how the run ended."""
        self._log({f"final/{name}": value for name, value in scores.items()}, 0)
        for path in files.values() if self.files else ():
            self._client.log_artifact(self._run, str(path))
        self._client.set_terminated(self._run, status=ENDS.get(status, "FAILED"))

    def _log(self, figures: Mapping[str, float], step: int) -> None:
        point = self._mlflow.entities.Metric
        points = [point(_name(name), value, 0, step) for name, value in figures.items()]
        self._client.log_batch(self._run, metrics=points)


def _name(text: str) -> str:
    """Return a name as MLflow takes it: letters, digits and some marks."""
    return "".join(c if c.isalnum() or c in "_-./ " else "_" for c in text)[:250]
