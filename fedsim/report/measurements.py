"""The figures in a run folder of any kind, one by one, with the settings that they came of."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass

import yaml

from fedsim.core.errors import FedsimError, in_words
from fedsim.report.forging_table import CAUSES, areas, correlations
from fedsim.report.forging_table import in_words as statistic_in_words
from fedsim.report.settings import settings_of
from fedsim.report.sweep import run_folders
from fedsim.storage.comparison import read_cells
from fedsim.storage.findings import findings
from fedsim.storage.games import STATISTICS, moves
from fedsim.storage.runfolder import RunFolder
from fedsim.storage.scores import metric_lines
from fedsim.storage.status import Status

GREY_LEVELS = 255


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One value of a figure, or why there is none."""

    settings: Mapping[str, object]
    value: float | None
    problem: str = ""


def measurements(folder: RunFolder, figure: str, *, by_round: bool = False) -> list[Measurement]:
    """Return all that a folder holds of a figure; by_round: of a run, one for every round."""
    kinds: dict[str, Callable[[], Iterator[Measurement]]] = {
        "run": lambda: _of_run(folder, figure, by_round),
        "replay": lambda: _of_run(folder, figure, by_round),
        "sweep": lambda: _of_sweep(folder, figure, by_round),
        "comparison": lambda: _of_comparison(folder, figure, by_round),
        "game": lambda: _of_game(folder, figure),
        "calibration": lambda: _of_calibration(folder, figure),
    }
    if (kind := folder.kind) not in kinds:
        raise FedsimError(f"{folder.path}: expected one of {', '.join(kinds)}, got a {kind}")
    return list(kinds[kind]())


def _of_sweep(folder: RunFolder, figure: str, by_round: bool) -> Iterator[Measurement]:
    for path in run_folders(folder.path):
        yield from _of_run(RunFolder(path), figure, by_round)


def _of_comparison(folder: RunFolder, figure: str, by_round: bool) -> Iterator[Measurement]:
    for cell in read_cells(folder.storage):
        own = {"attack": cell.attack, "defense": cell.defense, "seed": cell.seed}
        yield from _of_run(RunFolder(folder.path / cell.folder), figure, by_round, own)


def _of_run(
    run: RunFolder, figure: str, by_round: bool, own: Mapping[str, object] | None = None
) -> Iterator[Measurement]:
    """Yield a figure's mean, or its mean in every round; own: settings that its config does not have."""
    settings = dict(own or {})
    try:
        settings = settings_of(yaml.safe_load(run.config_text())) | settings
        if (standing := run.standing).status is not Status.COMPLETE:
            yield Measurement(settings=settings, value=None, problem=str(standing))
            return
        found = _round_figures(run, figure) if by_round else [({}, run.summary()["metrics"].get(figure))]
    except FedsimError as error:  # it never ran, or is damaged
        yield Measurement(settings=settings, value=None, problem=in_words(error))
        return
    for more, value in found:
        yield Measurement(settings=settings | more, value=value)


def _round_figures(run: RunFolder, figure: str) -> list[tuple[dict[str, object], float | None]]:
    rows, history = run.scores(), {result.round: result for result in run.history()}
    found = list[tuple[dict[str, object], float | None]]()
    for round in sorted({row.round for row in rows} | history.keys()):
        lines = metric_lines([row for row in rows if row.round == round])
        figures: dict[str, float] = {line.name: line.mean for line in lines}
        if round in history:
            figures |= {"accuracy": history[round].accuracy, "loss": history[round].loss}
        found.append(({"round": round}, figures.get(figure)))
    return found


def _of_game(folder: RunFolder, figure: str) -> Iterator[Measurement]:
    """Yield a column of every move, or what a forgery's moves come to: area, correlation, ...within_steps."""
    played = moves(folder.storage)
    if figure == "area":
        names = {statistic_in_words(name): name for name in STATISTICS}
        for forgery, words, area in areas(played):
            yield Measurement(settings={"forgery": forgery, "statistic": names[words]}, value=area)
    elif figure in ("correlation", "correlation_within_steps"):
        causes = {words: name for name, words in CAUSES.items()}
        for forgery, words, overall, within in correlations(played):
            value = overall if figure == "correlation" else within
            yield Measurement(settings={"forgery": forgery, "cause": causes[words]}, value=value)
    else:
        for move in played:
            columns = asdict(move)
            columns |= {"honest_error": move.benign}
            columns["moved"] = None if move.moved is None else GREY_LEVELS * move.moved
            found = columns.get(figure)
            number = float(found) if isinstance(found, bool | int | float) else None
            yield Measurement(settings=columns, value=number, problem=move.reason)


def _of_calibration(folder: RunFolder, figure: str) -> Iterator[Measurement]:
    for finding in findings(folder.storage):
        if finding.figure == figure:
            yield Measurement(settings={"study": finding.study, "case": finding.case}, value=finding.value)
