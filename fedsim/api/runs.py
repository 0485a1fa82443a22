"""Runs from Python: play one, or load what there is, and look at it."""

import html
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import pandas
import torch

from fedsim.api.overrides import overrides_of
from fedsim.api.pictures import Picture
from fedsim.api.tables import html_table, text_table
from fedsim.config import build
from fedsim.config.compose import composed
from fedsim.core.errors import FedsimError, printable
from fedsim.core.types import RoundResult
from fedsim.lab import experiment
from fedsim.report.guesses import guesses_of
from fedsim.storage.runfolder import RunFolder
from fedsim.storage.scores import ScoreRow, as_figure

HEADING = ("metric", "mean", "baseline")
KINDS = ("run", "replay", "wiretap")


@dataclass(frozen=True)
class Run:
    """A run folder to look at: its scores and history as data frames, its pictures, its report."""

    folder: RunFolder

    @property
    def path(self) -> Path:
        """Where it lies."""
        return self.folder.path

    @property
    def report(self) -> Path:
        """The page that shows it all."""
        return self.path / "report.html"

    @property
    def summary(self) -> dict[str, Any]:
        """What summary.json says: status, means, baselines, versions."""
        return self.folder.summary()

    @property
    def scores(self) -> pandas.DataFrame:
        """Every score, a line each: round, client, attack, metric, value, baseline, error."""
        return _frame(ScoreRow, self.folder.scores())

    @property
    def history(self) -> pandas.DataFrame:
        """The global model's accuracy and loss on the test images, a line for each round."""
        return _frame(RoundResult, self.folder.history())

    def pictures(self) -> list[Picture]:
        """Return what was guessed of some clients, beside the truth where it is known."""
        found = guesses_of(self.folder, self.folder.guessed())
        return [Picture(figure, found.titles.get(name, "")) for name, figure in found.figures.items()]

    def __str__(self) -> str:
        return "\n".join([printable(self._title()), text_table(HEADING, self._rows())])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        pictures = "".join(picture._repr_html_() for picture in self.pictures())
        return f"<p>{html.escape(printable(self._title()))}</p>{html_table(HEADING, self._rows())}{pictures}"

    def _title(self) -> str:
        return f"{self.summary.get('name', self.path.name)}: {self.folder.standing} ({self.path})"

    def _rows(self) -> list[tuple[str, str, str]]:
        metrics, baselines = self.summary.get("metrics", {}), self.summary.get("baseline", {})
        return [
            (name, as_figure(value), "" if name not in baselines else as_figure(baselines[name]))
            for name, value in metrics.items()
        ]


@dataclass(frozen=True)
class Runs:
    """Several runs in one folder: a sweep or a comparison."""

    path: Path
    runs: Mapping[str, Run]  # by their folders' names

    @property
    def report(self) -> Path:
        """The page over all of them."""
        return self.path / "report.html"

    @property
    def scores(self) -> pandas.DataFrame:
        """Every score of every run, under the run's name."""
        return pandas.concat({name: run.scores for name, run in self.runs.items()}, names=["run"])

    @property
    def means(self) -> pandas.DataFrame:
        """The means of every run, a line each."""
        return pandas.DataFrame.from_dict(
            {name: run.summary.get("metrics", {}) for name, run in self.runs.items()}, orient="index"
        )

    def __str__(self) -> str:
        return f"{len(self.runs)} runs ({self.path})\n{self.means.to_string(float_format=as_figure)}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        table: str = self.means.to_html(float_format=as_figure)
        return f"<p>{len(self.runs)} runs ({html.escape(printable(str(self.path)))})</p>{table}"


def run(*overrides: str, folder: str | Path | None = None, **settings: Any) -> Run:
    """Play an experiment: `fedsim.run(attack="ilrg", rounds=2)`, or overrides as the command line has them.

    folder: where its run folder goes; runs/DATE/TIME_NAME unless it is told.
    """
    chosen = overrides_of(overrides, settings)
    found = composed(chosen)
    threads = torch.get_num_threads()
    try:
        return Run(
            experiment.run(build.experiment(found.config), found.folder if folder is None else Path(folder))
        )
    finally:
        torch.set_num_threads(threads)  # the caller's own work goes on as it was


def load(folder: str | Path) -> Run:
    """Load the folder of a run, a replay or a wiretap."""
    path = Path(folder).expanduser()
    found = Run(RunFolder(path))
    if not (path / "config.yaml").is_file() and any(path.glob("**/config.yaml")):
        raise FedsimError(f"{path} holds several runs. Remedy: fedsim.load_all.")
    if (kind := found.folder.kind) not in KINDS:
        raise FedsimError(f"{path}: expected a {', '.join(KINDS)}, got a {kind}. Remedy: fedsim.load_all.")
    return found


def load_all(folder: str | Path) -> Runs:
    """Load all runs in a folder: a sweep's, a comparison's, or any other."""
    path = Path(folder).expanduser()
    folders = sorted(config.parent for config in path.glob("**/config.yaml") if config.parent != path)
    if not folders:
        raise FedsimError(
            f"{path} holds no run: expected a config.yaml in it or in its folders. "
            "Remedy: name a folder under runs/."
        )
    return Runs(path, {str(folder.relative_to(path)): Run(RunFolder(folder)) for folder in folders})


def _frame(kind: type[Any], rows: list[Any]) -> pandas.DataFrame:
    """Return rows as a data frame, with its columns even where there are none."""
    return pandas.DataFrame([asdict(row) for row in rows], columns=[field.name for field in fields(kind)])
