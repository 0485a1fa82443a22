"""Scores of many runs as one tidy table: a row a score, with the settings that it came of."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedsim.core.errors import FedsimError, in_words
from fedsim.metrics.facts import facts
from fedsim.report.overview import CHOSEN, FOREIGN, Overview, overview, overviews, parts_of
from fedsim.report.settings import differs
from fedsim.storage.comparison import read_cells
from fedsim.storage.files import tensor_header
from fedsim.storage.folder import Storage
from fedsim.storage.heading import read_summary
from fedsim.storage.scores import ScoreRow
from fedsim.storage.tables import read_rows

SCORED = ("run", "replay", "wiretap")
PASSING = ("jobs", "attackers", "keep", "objective", "tracking")  # settings that no score depends on
COLUMNS = (
    *("run", "status", *CHOSEN, "round", "client", "batch_size"),
    *("metric", "title", "paper", "value", "baseline", "error"),
)


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What is exported of some folders."""

    runs: tuple[Overview, ...]
    varied: tuple[str, ...]  # settings that differ between them, beside the choices
    skipped: tuple[str, ...]  # in words: what could not be read, or has no scores


def exported(paths: Sequence[Path]) -> Exported:
    """Find the scored runs in folders: runs, sweeps, comparisons, or folders of them."""
    runs, skipped = list[Overview](), list[str]()
    for path in paths:
        for one in _runs_in(path):
            if one.kind in SCORED:
                runs.append(one)
            elif one.status != FOREIGN:
                skipped.append(f"{one.path}: {one.problem or f'a {one.kind} has no scores'}")
    if not runs:
        words = f" ({skipped[0]})" if skipped else ""
        raise FedsimError(
            f"no scored run in {', '.join(map(str, paths))}{words}. "
            "Remedy: name runs, sweeps, comparisons, or a folder that holds them."
        )
    found = list({one.path.resolve(): one for one in runs}.values())  # a folder and its parent may be named
    settings = [dict(one.settings) for one in found]
    keys = dict.fromkeys(key for own in settings for key in own if key not in CHOSEN)
    varied = tuple(key for key in keys if key.partition(".")[0] not in PASSING and differs(key, settings))
    return Exported(runs=tuple(found), varied=varied, skipped=tuple(skipped))


def _runs_in(path: Path) -> Iterator[Overview]:
    """Yield the runs of a folder; a comparison's are its cells, under the names that it has for them."""
    if not path.is_dir():
        raise FedsimError(f"{path}: expected a folder of runs, got none")
    if not (path / "config.yaml").exists():
        for one in overviews(path):
            if one.parent is None:
                yield from _runs_of(one)
        return
    yield from _runs_of(overview(path))


def _runs_of(one: Overview) -> Iterator[Overview]:
    if one.kind == "sweep":
        yield from parts_of(one)
    elif one.kind == "comparison":
        for cell in read_cells(Storage(one.path)):
            run = overview(one.path / cell.folder, one.path)
            yield replace(run, chosen={**run.chosen, "attack": cell.attack, "defense": cell.defense})
    else:
        yield one


def tidy(found: Exported, metrics: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return a row for every score, and for every figure of a run as a whole; metrics: these alone."""
    rows = list[dict[str, Any]]()
    for run in found.runs:
        varied = {f"setting {key}": run.settings.get(key, "") for key in found.varied}
        for score in _scores(run):
            if not metrics or score["metric"] in metrics:
                rows.append(score | varied)
    return rows


def _scores(run: Overview) -> Iterator[dict[str, Any]]:
    storage = Storage(run.path)
    about: dict[str, Any] = {"run": str(run.path), "status": run.status}
    about |= {key: run.chosen.get(key, "") for key in CHOSEN if key != "seed"}
    about["seed"] = _whole(run.chosen.get("seed", ""))
    sizes: dict[tuple[int, int], int | None] = {}
    try:
        kept, scores = read_summary(storage).get("legend"), read_rows(storage, "scores.csv", ScoreRow)
    except FedsimError as error:
        yield _row(about, error=in_words(error))
        return
    for score in scores:
        place = score.round, score.client
        if place not in sizes:
            sizes[place] = _batch_size(storage, *place)
        figure = facts(score.metric, kept)
        yield _row(
            about,
            round=score.round,
            client=score.client,
            batch_size=sizes[place],
            metric=score.metric,
            title=figure.title,
            paper=figure.paper,
            value=score.value,
            baseline=score.baseline,
            error=score.error,
        )
    by_client = {score.metric for score in scores}
    for name, value in run.metrics.items():
        if name not in by_client:  # of the whole run: its accuracy, what an audit caught
            figure = facts(name, kept)
            yield _row(about, metric=name, title=figure.title, paper=figure.paper, value=value)


def _whole(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


def _row(about: dict[str, Any], **values: Any) -> dict[str, Any]:
    return dict.fromkeys(COLUMNS) | about | values


def _batch_size(storage: Storage, round: int, client: int) -> int | None:
    """Return how many examples were really behind a reply; None: nobody knows any more, or it is damaged."""
    try:
        content = storage.read(f"truth/round_{round}.client_{client}.safetensors")
        if content is None:
            return None
        return int(tensor_header(content)["labels"]["shape"][0])
    except (FedsimError, ValueError, LookupError, TypeError):
        return None
