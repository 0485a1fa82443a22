"""Tells a tracker of a run: every round as it ends, and what came of it. Its failures cost no run."""

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import yaml

from fedsim.core.errors import in_words
from fedsim.core.interfaces import Tracker
from fedsim.core.types import RoundResult
from fedsim.report.settings import settings_of
from fedsim.storage.logs import logged
from fedsim.storage.runfolder import RunFolder

log = logging.getLogger(__name__)
FILES = ("report.html", "scores.csv", "config.yaml", "summary.json")


class Tracked:
    """A tracker that is told no more once it has failed."""

    def __init__(self, tracker: Tracker, folder: RunFolder) -> None:
        self.tracker, self.folder = tracker, folder
        self._rounds, self._failed = set[int](), False

    def tell(self, what: str, call: Callable[[], None]) -> None:
        """Tell something; a failure is logged, and is the last that is heard of the tracker."""
        if self._failed:
            return
        try:
            call()
        except Exception as error:  # a server that is away, a disk that is full: no reason to lose a run
            self._failed = True
            log.warning("tracking: %s failed, the run goes on without it: %s", what, in_words(error))

    def round(self, result: RoundResult) -> None:
        """Tell of a round, once."""
        if result.round not in self._rounds:
            self._rounds.add(result.round)
            self.tell(f"round {result.round}", lambda: self.tracker.round(result))


@contextmanager
def tracked(tracker: Tracker, folder: RunFolder, name: str, config_text: str) -> Iterator[Tracked]:
    """Tell a tracker of what happens in the block, and of scores and files however it ends."""
    told = Tracked(tracker, folder)
    settings = {key: str(value) for key, value in settings_of(yaml.safe_load(config_text)).items()}
    with logged(folder.path):
        told.tell("begin", lambda: tracker.begin(name, settings, folder.path.resolve()))
    try:
        yield told
    finally:
        with logged(folder.path):
            told.tell("the end", lambda: _end(told))


def _end(told: Tracked) -> None:
    folder = told.folder
    for result in folder.history():  # rounds of other processes, or of before an interruption
        told.round(result)
    summary, files = folder.summary(), {name: folder.path / name for name in FILES}
    told.tracker.end(
        str(summary.get("status", "")),
        final_figures(summary),
        {name: path.resolve() for name, path in files.items() if path.is_file()},
    )


def final_figures(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return the final scores, and baselines under `baseline/`, that are numbers."""
    metrics, baselines = summary.get("metrics") or {}, summary.get("baseline") or {}
    named = [*metrics.items(), *((f"baseline/{name}", value) for name, value in baselines.items())]
    return {name: float(value) for name, value in named if value is not None and math.isfinite(value)}
