"""The page over many runs: filter, sort, and compare two of them side by side."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsim.core.errors import FedsimError, printable
from fedsim.metrics.facts import MetricFacts, facts
from fedsim.report.overview import CHOSEN, Overview, overviews
from fedsim.report.page import environment, link
from fedsim.storage.files import as_bytes, reading, write_whole

INDEX = "index.html"
MARK = '<meta name="generator" content="fedsim report">'  # of an index that may be written over
COLUMNS = 8  # figures that have one: those that most runs have


@dataclass(frozen=True, kw_only=True)
class Line:
    """One folder as the page shows it."""

    number: int
    run: Overview
    folder: str  # relative to the page
    address: str  # of its report; empty: it has none
    part: bool  # of a sweep, a comparison or a sweep of games


def write_index(root: Path) -> Path:
    """Write index.html over all run folders below one."""
    if (page := root / INDEX).exists():
        with reading(page):
            ours = MARK in page.read_text(encoding="utf-8", errors="replace")
        if not ours:
            raise FedsimError(f"{page} is not fedsim's. Remedy: move it away, or name another folder.")
    found = overviews(root)
    if not any(one.is_run for one in found):
        raise FedsimError(
            f"{root} holds no run: looked for config.yaml in it and in its folders. "
            "Remedy: name a run's folder, or one that holds some, such as runs/."
        )
    columns = _columns(found)
    text = (
        environment()
        .get_template("index.html")
        .render(
            title=f"All runs in {root.resolve().name}",
            mark=MARK,
            lines=[_line(number, one, root) for number, one in enumerate(found)],
            chosen=CHOSEN,
            columns=columns,
            unreadable=sum(not one.is_run for one in found),
            compared=_compared(found),
        )
    )
    write_whole(page, as_bytes(text))
    return page


def _line(number: int, one: Overview, root: Path) -> Line:
    parts = one.path.relative_to(root).parts
    has_report = one.is_run and (one.path / "report.html").is_file()
    return Line(
        number=number,
        run=one,
        folder=printable("/".join(parts), keep=""),
        address=link(*parts, "report.html") if has_report else "",
        part=one.parent is not None,
    )


def _columns(found: Sequence[Overview]) -> list[MetricFacts]:
    """Return the figures that most runs have: scores first, each in the order in which runs name them."""
    counted = Counter(name for one in found for name in one.metrics)
    most = {name for name, _ in counted.most_common(COLUMNS)}
    return sorted((facts(name) for name in counted if name in most), key=lambda own: not own.leaks)


def _compared(found: Sequence[Overview]) -> dict[str, Any]:
    """Return what the page compares runs by; a setting that many share is written once."""
    pairs: dict[tuple[str, str], int] = {}
    runs = list[dict[str, Any]]()
    for one in found:
        own = [pairs.setdefault(pair, len(pairs)) for pair in one.settings.items() if _tells(pair[0])]
        scores = [(name, value, one.baselines.get(name)) for name, value in one.metrics.items()]
        runs.append({"settings": own, "scores": scores})
    names = dict.fromkeys(name for one in found for name in one.metrics)
    return {"pairs": list(pairs), "runs": runs, "titles": [(name, facts(name).title) for name in names]}


def _tells(key: str) -> bool:
    """Say whether a setting is worth comparing; names and targets repeat what was chosen."""
    return key != "name" and not key.endswith("_target_")
