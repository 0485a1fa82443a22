"""The report of a comparison: which defense stops which attack, at what cost."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from matplotlib.figure import Figure as Drawing

from fedsim.metrics.facts import facts, legend
from fedsim.report.answers import Answer, Figure, leading
from fedsim.report.answers_comparison import Defended, comparison_answer
from fedsim.report.comparison_figures import comparison_figures
from fedsim.report.comparison_grid import Grid, grid_of, write_csv
from fedsim.report.leaks import RECORDED, Tried, leaks_answer, strongest, tried_of
from fedsim.report.origin import origin_of, setting_of
from fedsim.report.page import write_page
from fedsim.storage.comparison import read_cells
from fedsim.storage.heading import CONFIG_FILE
from fedsim.storage.runfolder import RunFolder

COSTS = (
    "accuracy",
    "loss",
    "bytes",
    "epsilon",
    "client_epsilon",
    "rounds_to_target",
    "seconds_to_target",
    "seconds",
)
AUDITED = ("detection", "false_rejects", "recomputed", "audit_bytes")


def answer_of(folder: RunFolder, summary: Mapping[str, Any]) -> Answer:
    """Say of every defense what it stops and what it costs."""
    return _answer(grid_of(folder, read_cells(folder.storage)), summary)


def _answer(grid: Grid, summary: Mapping[str, Any]) -> Answer:
    defended = [_defended(grid, defense) for defense in grid.defenses]
    if defended and "chosen" in summary:  # `fedsim leaks` chose the attacks, and says so
        return leaks_answer(defended, _tried(grid, summary), summary["skipped"])
    return comparison_answer(defended)


def _tried(grid: Grid, summary: Mapping[str, Any]) -> list[Tried]:
    problems = grid.problems | grid.gave_up
    return tried_of(summary["chosen"], _defended(grid, grid.defenses[0]), problems)


def strongest_attacks(folder: RunFolder, kinds: Mapping[str, str]) -> set[str]:
    """Return of every kind of attack those that got most behind any defense."""
    grid = grid_of(folder, read_cells(folder.storage))
    return strongest([_defended(grid, defense) for defense in grid.defenses], kinds)


def _defended(grid: Grid, defense: str) -> Defended:
    figures = dict[str, list[Figure]]()
    for attack in grid.attacks:
        own = grid.cells[attack, defense]
        figures[attack] = [
            Figure(
                metric=grid.legend[name],
                value=own[name].mean,
                baseline=own[name].baseline,
                chance=own[name].chance,
            )
            for name in leading(own).values()
        ]
    return Defended(
        defense=defense,
        figures=figures,
        gave_up=[attack for attack in grid.attacks if (attack, defense) in grid.gave_up],
        failed=[attack for attack in grid.attacks if (attack, defense) in grid.problems],
        costs={name: entry.mean for name, entry in grid.costs[defense].items()},
    )


def drawings_of(folder: RunFolder, summary: Mapping[str, Any]) -> dict[str, Drawing]:
    """Draw what the page shows."""
    return comparison_figures(grid_of(folder, read_cells(folder.storage)))


def write_page_of(folder: RunFolder, summary: Mapping[str, Any]) -> Path:
    """Write comparison.csv and report.html over all cells of a comparison."""
    listed = read_cells(folder.storage)
    grid = grid_of(folder, listed)
    write_csv(folder.storage, grid)
    seeds, config = len({cell.seed for cell in listed}), yaml.safe_load(folder.config_text())
    shown = [name for name in (*COSTS, *AUDITED) if any(name in found for found in grid.costs.values())]
    chosen = bool(grid.defenses) and "chosen" in summary
    return write_page(
        folder.path / "report.html",
        "leaks.html" if chosen else "comparison.html",
        comparison_figures(grid),
        title=_title(grid, "What leaks" if chosen else "Which defense stops which attack"),
        answer=_answer(grid, summary),
        tried=_tried(grid, summary) if chosen else [],
        skipped=summary.get("skipped", []),
        minutes=summary.get("minutes"),
        runs=seeds,
        common=" ".join(config["common"])
        or ("what was recorded" if RECORDED in grid.defenses else "the default federation"),
        grid=grid,
        knowing=list(dict.fromkeys(cell.attack for cell in listed if cell.knows)),
        summing=[defense for defense in grid.defenses if "secure_aggregation" in defense],
        metrics=[grid.legend[name] for name in grid.metrics],
        cost_names=legend(shown).values(),
        timed=facts("seconds"),
        origin=origin_of(folder, summary, config),
        csv=(folder.path / "comparison.csv").read_text(encoding="utf-8"),
    )


def _title(grid: Grid, question: str) -> str:
    """Name a comparison by its model, data and defenses."""
    trained = [own.path / CONFIG_FILE for found in grid.trainings.values() for own in found]
    setting = setting_of(
        yaml.safe_load(RunFolder(path.parent).config_text()) for path in trained if path.exists()
    )
    few = len(grid.defenses) <= 4 and len("".join(grid.defenses)) < 80
    defenses = ", ".join(grid.defenses) if few else f"{len(grid.defenses)} defenses"
    return f"{question}: {' · '.join(filter(None, (setting, defenses)))}"
