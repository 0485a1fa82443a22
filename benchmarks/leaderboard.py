"""The public leaderboard: a page over folders of comparisons, every figure with its baseline, range and line.

    python benchmarks/leaderboard.py runs/leaderboard/* > docs/leaderboard.md

A figure is the lowest and the highest of the seeds, each the mean over its batches. The line beside it plays
that attack and that defense alone, and gives the same figures again; the one above the table plays all of it.
"""

import argparse
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import yaml

from fedsim.lab.compare import comparison_of
from fedsim.storage.comparison import Cell, read_cells
from fedsim.storage.runfolder import CONFIG_FILE, RunFolder

METRICS = {"leacc": "LeAcc", "lnacc": "LnAcc", "irec": "IRec", "psnr": "PSNR (dB)", "image_error": "error"}
OPENING = """# Leaderboard

Which attack gets through which defense, on which model. Written by `python benchmarks/leaderboard.py
FOLDER ...` from run folders of `fedsim compare`; nothing on this page is typed by hand.

A figure is the lowest and the highest of the seeds, each the mean over its batches; **blind** is what the
best guess without the gradient gets. Bold: every seed is above the highest blind guess. "Gave up": the
attack says that it found nothing. "In 3 of 5 seeds": it claims nothing of the kind in the others. The line
above a table plays all of it, the one at the end of a row that row alone. [Metrics](metrics.md) defines the
figures, [Defenses compared](tutorial/defenses-compared.md) the command. What a comparison of yours gives,
the same script prints.
"""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One attack against one defense, over the seeds of a comparison."""

    attack: str
    defense: str
    summaries: tuple[dict[str, Any], ...]

    def over_seeds(self, metric: str, kind: str = "metrics") -> list[float]:
        """Return a figure of every seed that has it."""
        return [found[kind][metric] for found in self.summaries if metric in found.get(kind, {})]


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("folders", nargs="+", type=Path, help="of comparisons")
    print(page(parser.parse_args().folders))


def page(folders: Sequence[Path]) -> str:
    """Return the page as markdown."""
    written = f"Written on {date.today():%-d %B %Y}.\n"
    return "\n".join([OPENING, written, *(section(RunFolder(path)) for path in folders)]).rstrip()


def section(folder: RunFolder) -> str:
    """Return the table of one comparison."""
    cells = read_cells(folder.storage)
    common = yaml.safe_load(folder.storage.read_text(CONFIG_FILE))["common"]
    rows, seeds = list(_rows(folder, cells)), {cell.seed for cell in cells}
    attacks, defenses = dict.fromkeys(row.attack for row in rows), dict.fromkeys(row.defense for row in rows)
    shown = [metric for metric in METRICS if any(row.over_seeds(metric) for row in rows)]
    heading = ["defense", "attack", *(f"{METRICS[each]} (blind)" for each in shown), "test accuracy", "line"]
    whole = _command([*attacks], [*defenses], common, seeds)
    lines = [*_opening(folder, cells[0], len(seeds)), f"\n```sh\n{whole}\n```\n", _line(heading)]
    lines.append(_line(["---"] * len(heading)))
    for defense in defenses:
        for row in (row for row in rows if row.defense == defense):
            figures = [_figure(row, metric) for metric in shown]
            alone = _command([row.attack], [row.defense], common, seeds)
            cost = _range(row.over_seeds("accuracy"))
            lines.append(
                _line([row.defense, row.attack, *figures, cost, f'<code class="line">{alone}</code>'])
            )
    return "\n".join(lines) + "\n"


def _rows(folder: RunFolder, cells: Sequence[Cell]) -> Iterator[Row]:
    for attack, defense in dict.fromkeys((cell.attack, cell.defense) for cell in cells):
        own = [cell for cell in cells if (cell.attack, cell.defense) == (attack, defense)]
        summaries = tuple(RunFolder(folder.path / cell.folder).summary() for cell in own)
        yield Row(attack=attack, defense=defense, summaries=summaries)


def _opening(folder: RunFolder, cell: Cell, seeds: int) -> list[str]:
    training = RunFolder(folder.path / cell.training)
    config = yaml.safe_load(training.storage.read_text(CONFIG_FILE))
    rules, choices, made = config["federation"], config["choices"], folder.summary()
    machine = " with ".join(made["machine"][each] for each in ("processor", "instructions"))
    versions = made["versions"]
    return [
        f"## {choices['model']}, {choices['data']}\n",
        f"{rules['clients']} clients, batches of {rules['batch_size']}, {rules['rounds']} rounds,",
        f"{seeds} seeds; on {machine}, one thread;",
        f"fedsim {versions['fedsim']}, torch {versions['torch']}, flwr {versions['flwr']}.",
    ]


def _figure(row: Row, metric: str) -> str:
    """Return the range over seeds, bold where all of them are above every blind guess."""
    values, blind, seeds = row.over_seeds(metric), row.over_seeds(metric, "baseline"), len(row.summaries)
    gave_up = sum(found["status"] == "gave up" for found in row.summaries)
    if not values:
        return f"gave up, {gave_up} of {seeds}" if gave_up else ""
    text = _range(values)
    if len(values) < seeds:
        text = f"{text} in {len(values)} of {seeds} seeds"
    elif blind and min(values) > max(blind):
        text = f"**{text}**"
    return f"{text} ({_range(blind)})" if blind else text


def _range(values: Sequence[float]) -> str:
    ends = (min(values), max(values)) if values else ()
    return " to ".join(dict.fromkeys(f"{end:.0f}" if abs(end) >= 10 else f"{end:.2f}" for end in ends))


def _command(attacks: Sequence[str], defenses: Sequence[str], common: Sequence[str], seeds: set[int]) -> str:
    """Return the line that plays these alone, once it is certain that it does."""
    chosen = ",".join(map(_written, attacks)), ",".join(map(_written, defenses))
    words = [f"attack=[{chosen[0]}]", f"defense=[{chosen[1]}]", f"seeds={len(seeds)}", *common]
    words += [f"seed={min(seeds)}"] if min(seeds) else []
    understood = comparison_of([*words, "into=again"])
    for wanted, got in ((attacks, understood.attacks), (defenses, understood.defenses)):
        assert [*wanted] == [choice.label for choice in got], f"expected {wanted}, got {got}"
    return f"fedsim compare {shlex.join(words)} into=again"


def _written(label: str) -> str:
    """Return `name (setting value, other value)` as the command line wants it, `one + other` as a list."""
    if " + " in label:
        return f"[{','.join(map(_written, label.split(' + ')))}]"
    found = re.fullmatch(r"(\S+)(?: \((.*)\))?", label)
    assert found, label
    if not found[2]:
        return found[1]
    settings = ", ".join(": ".join(part.split(" ", 1)) for part in found[2].split(", "))
    return f"{{{found[1]}: {{{settings}}}}}"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    main()
