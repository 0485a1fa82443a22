"""Whether an experiment's results lie where they are expected. Nothing passes that was not measured."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean, median

from fedsim.core.errors import shortened
from fedsim.core.expectation import Expectation, in_digits
from fedsim.report.measurements import measurements
from fedsim.storage.runfolder import RunFolder
from fedsim.storage.status import Status

OVER_ALL: Mapping[str, Callable[[Sequence[float]], float]] = {
    "mean": fmean,
    "median": median,
    "lowest": min,
    "highest": max,
    "sum": math.fsum,
}


class Outcome(StrEnum):
    """How a figure stands to its range."""

    WITHIN = "within"
    OUTSIDE = "outside"
    MISSING = "missing"


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """A figure that was expected, what came, and the verdict."""

    figure: str
    about: str
    range: str
    outcome: Outcome
    got: tuple[float, ...] = ()
    reason: str = ""  # why it is missing

    @property
    def shown(self) -> str:
        """What came, in words."""
        if self.outcome is Outcome.MISSING:
            return shortened(self.reason, 200)
        low, high = in_digits(min(self.got)), in_digits(max(self.got))
        return low if low == high else f"{low} to {high}"


def check_folder(folder: RunFolder, expected: Iterable[Expectation]) -> list[Judgement]:
    """Judge every expectation by what a folder holds; one that is not complete is a failure by itself."""
    judged = [judge(expectation, folder) for expectation in expected]
    if (standing := folder.standing).status is Status.COMPLETE:
        return judged
    unfinished = Judgement(
        figure="status", about="", range=Status.COMPLETE, outcome=Outcome.MISSING, reason=str(standing)
    )
    return [unfinished, *judged]


def judge(expectation: Expectation, folder: RunFolder) -> Judgement:
    """Compare one figure with its range."""

    def judgement(outcome: Outcome, got: Sequence[float] = (), reason: str = "") -> Judgement:
        return Judgement(
            figure=expectation.name,
            about=expectation.about,
            range=expectation.range,
            outcome=outcome,
            got=tuple(got),
            reason=reason,
        )

    found = [
        measurement
        for measurement in measurements(folder, expectation.figure, by_round="round" in expectation.where)
        if expectation.is_about(measurement.settings)
    ]
    if not found:
        return judgement(Outcome.MISSING, reason="no result of that kind")
    values = list[float]()
    for measurement in found:
        if measurement.value is None or math.isnan(measurement.value):
            reason = measurement.problem or "not measured, or not a number"
            return judgement(Outcome.MISSING, reason=reason)
        values.append(measurement.value)
    if expectation.take != "each":
        values = [OVER_ALL[expectation.take](values)]
    inside = all(expectation.least <= value <= expectation.most for value in values)
    return judgement(Outcome.WITHIN if inside else Outcome.OUTSIDE, values)
