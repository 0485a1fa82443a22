"""What a run says on the terminal when it ends."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedsim.core.errors import printable
from fedsim.report.answers import counted
from fedsim.storage.runfolder import RunFolder
from fedsim.storage.scores import as_figure


def print_summary(folder: RunFolder) -> None:
    """Print a run's small table of metrics, what was guessed where no truth is known, and its report."""
    summary = folder.summary()
    name = printable(summary["name"], keep="")
    observed = counted(summary["observations"], "observation")
    print(f"{name}: {observed}, {counted(summary['faults'], 'fault')}")
    table = Table()
    table.add_column("metric")
    table.add_column("mean", justify="right")
    table.add_column("baseline", justify="right")
    for metric, value in summary["metrics"].items():
        baseline = summary["baseline"].get(metric)
        shown = "not finite" if value is None else as_figure(value)
        table.add_row(
            Text(printable(metric, keep="")), shown, "" if baseline is None else as_figure(baseline)
        )
    Console().print(table)
    if folder.guessed() and not folder.has_truth():
        print("no truth is known of these observations: nothing is scored, the report shows the guesses")
        for line in _guessed_counts(folder):
            print(line)
    print_answer(summary)
    report = (folder.path / "report.html").resolve()
    print(f"report: {printable(str(report), keep='')}")


def print_answer(summary: Mapping[str, Any]) -> None:
    """Print what a report begins with, in a line, and a line a point; nothing where nothing was written."""
    if answer := summary.get("answer"):
        print(printable(str(answer), keep=""))
    for point in summary.get("points") or ():
        print(f"- {printable(str(point), keep='')}")


def _guessed_counts(folder: RunFolder, most: int = 6) -> list[str]:
    """Say of some observations which labels were restored, the most frequent first."""
    lines = []
    for round, client in folder.guessed()[:most]:
        guess = folder.guess(round, client)
        if guess is not None and guess.class_counts is not None:
            counts = sorted(enumerate(guess.class_counts.tolist()), key=lambda pair: -pair[1])
            found = ", ".join(f"{n} of class {label}" for label, n in counts[:10] if n)
            lines.append(f"round {round}, client {client}: {found}")
    return lines
