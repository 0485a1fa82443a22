"""A run folder of any kind in the terminal: what it is, how it stands, its table. Without torch."""

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedsim.core.errors import printable
from fedsim.report.overview import CHOSEN, MANY, Overview, overview, parts_of, with_choices_of
from fedsim.report.settings import differs
from fedsim.storage.comparison import read_cells
from fedsim.storage.findings import findings
from fedsim.storage.folder import Storage
from fedsim.storage.games import moves
from fedsim.storage.heading import read_summary
from fedsim.storage.scores import as_figure

WIDTH = 120  # columns, where there is no terminal
COLUMNS = 6  # figures of many runs that have one


def show(run: Overview) -> None:
    """Print a run's table, how it stands and where it lies."""
    tables: dict[str, Callable[[Overview], None]] = {
        "sweep": _print_sweep,
        "comparison": _print_comparison,
        "game": _print_game,
        "proof": _print_proof,
        "calibration": _print_calibration,
    }
    print(f"{run.name} ({run.kind}, {run.date}): {run.status}{f': {run.problem}' if run.problem else ''}")
    whole = with_choices_of(run, parts) if run.kind in MANY and (parts := parts_of(run)) else run
    if chosen := "; ".join(f"{key} {whole.chosen[key]}" for key in CHOSEN if whole.chosen.get(key)):
        print(chosen)
    tables.get(run.kind, _print_run)(run)
    if run.answer:
        print(run.answer)
    for point in run.points:
        print(f"- {point}")
    report = (run.path / "report.html").resolve()
    print(f"report: {printable(str(report), keep='') if report.is_file() else 'none yet: fedsim report'}")
    print(printable(str(run.path.resolve()), keep=""))


def _print_run(run: Overview) -> None:
    rows = [[name, _shown(value), _shown(run.baselines.get(name), "")] for name, value in run.metrics.items()]
    _print(["metric"], ["mean", "baseline"], rows)


def _print_sweep(run: Overview) -> None:
    parts = parts_of(run)
    settings = [dict(part.settings) for part in parts]
    keys = [key for key in dict.fromkeys(key for own in settings for key in own) if differs(key, settings)]
    names = _names(parts)
    rows = [
        [*(part.settings.get(key, "") for key in keys), part.status, *(_beside([part], n) for n in names)]
        for part in parts
    ]
    _print([*keys, "status"], names, rows)


def _print_comparison(run: Overview) -> None:
    """Print a line for every attack against every defense, with means over the seeds."""
    cells = dict[tuple[str, str], list[Overview]]()
    for cell in read_cells(Storage(run.path)):
        cells.setdefault((cell.attack, cell.defense), []).append(overview(run.path / cell.folder))
    names = _names([part for own in cells.values() for part in own])
    rows = list[list[str]]()
    for key, own in cells.items():
        complete = [part for part in own if part.status == "complete"]
        status = "complete" if len(complete) == len(own) else f"{len(complete)} of {len(own)} complete"
        rows.append([*key, status, *(_beside(complete, name) for name in names)])
    _print(["attack", "defense", "status"], names, rows)


def _print_game(run: Overview) -> None:
    from fedsim.report.forging_table import print_moves

    print_moves(moves(Storage(run.path)))


def _print_proof(run: Overview) -> None:
    known = ("steps", "batch_size", "learning_rate", "every", "precision", "bytes")
    summary = read_summary(Storage(run.path))
    _print(["of the proof"], ["value"], [[name, str(summary[name])] for name in known if name in summary])


def _print_calibration(run: Overview) -> None:
    found = findings(Storage(run.path))
    rows = [[one.study, one.case, one.figure, f"{one.value:.4g}"] for one in found]
    _print(["study", "case", "figure"], ["value"], rows)


def _names(runs: Iterable[Overview]) -> list[str]:
    """Return the figures to show of many runs: those with a baseline first."""
    found = list(runs)
    named = list(dict.fromkeys(name for one in found for name in one.metrics))
    scored = {name for one in found for name in one.baselines}
    return sorted(named, key=lambda name: name not in scored)[:COLUMNS]


def _beside(runs: Sequence[Overview], name: str) -> str:
    """Return a figure's mean over runs, and its baseline beside it."""
    values = [value for one in runs if (value := one.metrics.get(name)) is not None]
    blind = [value for one in runs if (value := one.baselines.get(name)) is not None]
    if not values:
        return "–"
    return as_figure(fmean(values)) + (f" ({as_figure(fmean(blind))})" if blind else "")


def _shown(value: float | None, missing: str = "not finite") -> str:
    return missing if value is None else as_figure(value)


def _print(words: Sequence[str], figures: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; figures with a baseline have it in brackets."""
    table = Table()
    for name in words:
        table.add_column(Text(printable(name, keep="")), overflow="fold")
    for name in figures:
        table.add_column(Text(printable(name, keep="")), justify="right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell, keep="")) for cell in row))
    console = Console()
    console.width = console.width if console.is_terminal else WIDTH
    console.print(table)
    if any("(" in cell for row in rows for cell in row[len(words) :]):
        print("in brackets: the baseline, the best guess without a gradient")
