"""The report of forging games: who won, by how much, how it looks, and whether it could have been seen."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import fmean, median

import numpy as np
import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table
from rich.text import Text
from scipy.stats import spearmanr
from torch import Tensor

from fedsim.core.errors import printable
from fedsim.integrity.forge import Move
from fedsim.report.figures import INK, literal, wrapped
from fedsim.report.page import as_file_name, write_page
from fedsim.storage.files import csv_text
from fedsim.storage.folder import Storage

SHOWN = 10  # images of a batch in a picture
COLOURS = ("#d64545", "#3f7cac", "#e8a33d", "#7fb685", "#8d6a9f", "#4d9078", "#b56576", "#323f4b")
REASONS = 12  # of rejections that are shown
LOWEST = 1e-19  # where an error of 0 is drawn


@dataclass(frozen=True, kw_only=True)
class Line:
    """All moves of a forgery in a game with as many unwanted examples, in a line."""

    game: str
    forgery: str
    unwanted: str
    moves: int
    accepted: int
    domain: str
    planned: bool
    error: float | None  # median
    smallest: float | None
    largest: float | None
    benign: float | None  # median
    gone: float | None  # share of the unwanted examples; None: there were none
    moved: float  # median change of their images, in grey levels
    seconds: float  # median
    reason: str  # of the first that lost

    @property
    def ratio(self) -> float | None:
        """The median error in units of the honest one."""
        return self.error / self.benign if self.error is not None and self.benign else None


def lines(moves: Sequence[Move]) -> list[Line]:
    """Sum moves up."""
    groups: dict[tuple[str, str, int, int], list[Move]] = {}
    for move in moves:
        groups.setdefault((move.game, move.forgery, move.unwanted, move.size), []).append(move)
    return [_line(group) for group in groups.values()]


def _line(moves: Sequence[Move]) -> Line:
    verdicts = [move.verdict for move in moves if move.verdict is not None]
    errors = [verdict.error for verdict in verdicts if math.isfinite(verdict.error)]
    first = moves[0]
    return Line(
        game=first.game,
        forgery=first.forgery,
        unwanted=f"{first.unwanted} of {first.size}",
        moves=len(moves),
        accepted=sum(move.accepted for move in moves),
        domain=", ".join(dict.fromkeys(verdict.domain for verdict in verdicts)) or "none",
        planned=any(move.planned for move in moves),
        error=median(errors) if errors else None,
        smallest=min(errors, default=None),
        largest=max(errors, default=None),
        benign=median(verdict.benign for verdict in verdicts) if verdicts else None,
        gone=_gone(moves),
        moved=255 * median(move.moved for move in moves),
        seconds=median(move.seconds for move in moves),
        reason=next((move.reason for move in moves if not move.accepted), ""),
    )


def _gone(moves: Sequence[Move]) -> float | None:
    total = sum(move.unwanted for move in moves)
    return sum(move.gone for move in moves) / total if total else None


def print_moves(moves: Sequence[Move]) -> None:
    """Print the small table that ends a game."""
    table = Table()
    games = any(move.game for move in moves)
    for name in (["game"] if games else []) + ["forgery", "unwanted", "gone", "accepted", "domain"]:
        table.add_column(name)
    for name in ("error", "honest error", "moved"):
        table.add_column(name, justify="right")
    for line in lines(moves):
        name = f"{line.forgery} (planned)" if line.planned else line.forgery
        cells = [line.game] if games else []
        gone = "–" if line.gone is None else f"{100 * line.gone:.0f} %"
        cells += [name, line.unwanted, gone, f"{line.accepted} of {line.moves}", line.domain]
        shown = (Text(printable(cell, keep="")) for cell in cells)
        table.add_row(*shown, *(short(value) for value in (line.error, line.benign, line.moved)))
    Console(width=110).print(table)


def refutation(moves: Sequence[Move], examples: Sequence[int]) -> str:
    """Say whether the trace passes as one that never used these examples."""
    said = list[str]()
    for forgery, own in _by_forgery(moves):
        good = sum(move.accepted and move.gone == move.unwanted for move in own)
        verdict = "the whole trace passes without them" if good == len(own) else "the claim fails"
        said.append(f"{forgery}: examples {list(examples)} denied in {good} of {len(own)} steps: {verdict}")
    return printable("\n".join(said))


def short(value: float | None) -> str:
    """Return a number in few digits."""
    return "–" if value is None else f"{value:.2g}"


def write_forging(moves: Sequence[Move], folder: Path) -> Path:
    """Write forgeries.csv, the first batches of each forgery, and the page."""
    names = ["game", "forgery", "step", "batch", "unwanted", "size", "gone", "planned", "accepted", "check"]
    names += ["domain", "error", "benign", "delta", "loss", "moved", "seconds"]
    statistics = list(moves[0].suspicions)
    rows = [[*names, *statistics, *(f"{name}, honest" for name in statistics), "reason"]]
    for move in moves:
        verdict = move.verdict
        judged = [verdict.check, verdict.domain] if verdict else ["forgery", ""]
        measured = (verdict.error, verdict.benign, verdict.delta) if verdict else ("", "", "")
        row: list[object] = [move.game, move.forgery, move.step, move.number, move.unwanted, move.size]
        row += [
            move.gone,
            move.planned,
            move.accepted,
            *judged,
            *measured,
            move.loss,
            move.moved,
            move.seconds,
        ]
        row += [*move.suspicions.values(), *move.honest.values(), move.reason]
        rows.append([printable(str(value)) for value in row])
    storage = Storage(folder)
    storage.write_text("forgeries.csv", csv_text(rows))
    figures: dict[str, Figure] = {}
    if any(move.verdict for move in moves):
        figures["errors"] = errors_figure(moves)
    pictured = _first_of_each(moves)
    for name, move in pictured.items():
        if move.claimed is not None:
            tensors = {"used": move.used.images, "claimed": move.claimed.images}
            tensors |= {"used_labels": move.used.labels, "claimed_labels": move.claimed.labels}
            storage.write_tensors(f"batches/{name}.safetensors", tensors)
            figures[f"pictures_{name}"] = pictures_figure(move)
    singles = [move for move in moves if move.unwanted == 1 and move.verdict and move.verdict.error > 0]
    if len(singles) >= 8:
        figures["causes"] = causes_figure(singles)
    if len(moves) >= 5 * len({_name(move) for move in moves}):
        figures["roc"] = roc_figure(moves)
    summed = lines(moves)
    return write_page(
        folder / "report.html",
        "forging.html",
        figures,
        title="Forging game",
        lines=summed,
        reasons=list(dict.fromkeys((line.game, line.forgery, line.reason) for line in summed if line.reason))[
            :REASONS
        ],
        games=any(move.game for move in moves),
        won=sum(move.accepted for move in moves),
        total=len(moves),
        short=short,
        pictured=[(name, move) for name, move in pictured.items() if f"pictures_{name}" in figures],
        correlations=correlations(singles) if len(singles) >= 8 else [],
        areas=areas(moves) if "roc" in figures else [],
    )


def _first_of_each(moves: Sequence[Move]) -> dict[str, Move]:
    """Return a move for each forgery: the first that claimed something."""
    chosen: dict[str, Move] = {}
    for move in moves:
        if move.claimed is not None:
            chosen.setdefault(as_file_name(re.sub(r"[^\w.=-]+", "_", _name(move))), move)
    return chosen


def errors_figure(moves: Sequence[Move]) -> Figure:
    """Draw errors of forgeries and of honest recomputation against the step, on a log axis."""
    judged = [move for move in moves if move.verdict is not None]
    figure = Figure(figsize=(7.5, 3.6), layout="constrained")
    axes = figure.subplots()
    forgeries = list(dict.fromkeys(_name(move) for move in judged))
    sizes = sorted({move.unwanted for move in judged})
    for move in judged:
        assert move.verdict is not None
        axes.plot(
            move.step,
            max(move.verdict.error, LOWEST),
            "osD^v"[sizes.index(move.unwanted) % 5],
            color=COLOURS[forgeries.index(_name(move)) % len(COLOURS)],
            mfc="none" if not move.accepted else None,
            ms=6,
            alpha=0.8,
        )
    steps = sorted({move.step for move in judged})
    for name, style in (("benign", ":"), ("delta", "--")):
        heights = [
            max(max(getattr(m.verdict, name) for m in judged if m.step == step), LOWEST) for step in steps
        ]
        label = "honest error" if name == "benign" else "delta"
        axes.plot(steps, heights, style, color=INK, marker="_" if len(steps) == 1 else "", ms=30, label=label)
    for place, name in enumerate(forgeries):
        axes.plot([], [], "o", color=COLOURS[place % len(COLOURS)], label=wrapped(name, 32, 4))
    if len(sizes) > 1:
        for place, size in enumerate(sizes):
            axes.plot([], [], "osD^v"[place % 5], color="#9aa5b1", mfc="none", label=f"{size} replaced")
    axes.set_yscale("log")
    axes.set_xlabel("step of the trace")
    axes.set_ylabel("l2 error of the update")
    axes.set_title("filled: accepted", fontsize=9, color=INK, loc="left")
    figure.legend(loc="outside right upper", fontsize=8, frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure


def pictures_figure(move: Move) -> Figure:
    """Draw some unwanted images, what was claimed in their place, and the difference."""
    assert move.claimed is not None
    changed = (move.claimed.images.double() - move.used.images.double()).flatten(1).abs().amax(dim=1)
    relabelled = _classes(move.claimed.labels) != _classes(move.used.labels)
    places = torch.argsort(changed + relabelled.double(), descending=True, stable=True)[:SHOWN].sort().values
    used, claimed = move.used.images[places].double(), move.claimed.images[places].double()
    rows = [("trained on", used), ("claimed", claimed), ("difference", (claimed - used) / 2 + 0.5)]
    figure = Figure(figsize=(0.85 * len(places) + 1.0, 3.0), layout="constrained")
    grid = figure.subplots(3, len(places), squeeze=False)
    for row, (name, images) in enumerate(rows):
        for column, image in enumerate(images):
            axes = grid[row][column]
            pixels = image.clamp(0, 1).permute(1, 2, 0).numpy()
            axes.imshow(pixels.squeeze(2) if pixels.shape[2] == 1 else pixels, cmap="gray", vmin=0, vmax=1)
            axes.set_xticks([])
            axes.set_yticks([])
            if row < 2:
                labels = (move.used if row == 0 else move.claimed).labels
                axes.set_xlabel(str(int(_classes(labels)[places[column]])), fontsize=7, labelpad=1)
        grid[row][0].set_ylabel(name, fontsize=8, color=INK)
    return figure


def _classes(labels: Tensor) -> Tensor:
    """Return classes, or the largest share of each example."""
    return labels if labels.ndim == 1 else labels.argmax(dim=1)


def causes_figure(moves: Sequence[Move]) -> Figure:
    """Draw errors against the loss of the replaced example, and against how far its replacement is."""
    figure = Figure(figsize=(7.5, 3.0), layout="constrained")
    for axes, (name, words) in zip(figure.subplots(1, 2), CAUSES.items(), strict=True):
        for place, (forgery, own) in enumerate(_by_forgery(moves)):
            heights = [move.verdict.error for move in own if move.verdict]
            colour = COLOURS[place % len(COLOURS)]
            axes.plot(
                [getattr(move, name) for move in own],
                heights,
                "o",
                ms=4,
                alpha=0.7,
                color=colour,
                label=wrapped(forgery, 32, 4),
            )
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel(words)
        axes.set_ylabel("l2 error of the update")
        axes.legend(frameon=False, fontsize=7)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    return figure


CAUSES = {"loss": "loss of the replaced example", "moved": "distance of its replacement (rms)"}


def correlations(moves: Sequence[Move]) -> list[tuple[str, str, float, float]]:
    """Return how errors go with the loss and with the distance: rank correlations, over all and in a step."""
    return [
        (forgery, words, _rank_correlation(own, name), _within_steps(own, name))
        for forgery, own in _by_forgery(moves)
        if len(own) >= 8
        for name, words in CAUSES.items()
    ]


def _rank_correlation(moves: Sequence[Move], name: str) -> float:
    return float(spearmanr([getattr(move, name) for move in moves], _errors(moves))[0])


def _within_steps(moves: Sequence[Move], name: str) -> float:
    """Return the mean over steps: without what changes for all examples in the course of training."""
    steps = [[move for move in moves if move.step == step] for step in sorted({move.step for move in moves})]
    found = [_rank_correlation(own, name) for own in steps if len(own) >= 5]
    return fmean(found) if found else math.nan


def _errors(moves: Sequence[Move]) -> list[float]:
    return [move.verdict.error for move in moves if move.verdict is not None]


def areas(moves: Sequence[Move]) -> list[tuple[str, str, float]]:
    """Return how well each statistic tells forged batches from honest ones: the area under its ROC curve."""
    return [
        (forgery, name, _area([m.suspicions[name] for m in own], [m.honest[name] for m in own]))
        for forgery, own in _by_forgery([move for move in moves if move.claimed is not None])
        for name in own[0].suspicions
    ]


def _area(forged: Sequence[float], honest: Sequence[float]) -> float:
    gaps = np.subtract.outer(np.asarray(forged), np.asarray(honest))
    return float((gaps > 0).mean() + 0.5 * (gaps == 0).mean())


def roc_figure(moves: Sequence[Move]) -> Figure:
    """Draw for each statistic the share of forged batches found against that of honest ones suspected."""
    claimed = [move for move in moves if move.claimed is not None] or list(moves)
    names = list(claimed[0].suspicions)
    figure = Figure(figsize=(9.5, 3.0), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(names)), names, strict=True):
        for place, (forgery, own) in enumerate(_by_forgery(claimed)):
            forged = np.array([move.suspicions[name] for move in own])
            honest = np.array([move.honest[name] for move in own])
            limits = np.concatenate([[np.inf], np.unique(np.concatenate([forged, honest]))[::-1]])
            found = [(forged >= limit).mean() for limit in limits]
            wrong = [(honest >= limit).mean() for limit in limits]
            axes.plot(
                wrong,
                found,
                color=COLOURS[place % len(COLOURS)],
                label=wrapped(forgery, 32, 4),
                lw=2,
                alpha=0.8,
            )
        axes.plot([0, 1], [0, 1], ":", color="#9aa5b1", lw=1)
        axes.set_title(literal(name), fontsize=9, color=INK)
        axes.set_xlabel("honest batches suspected", fontsize=8)
    figure.axes[0].set_ylabel("forged batches found", fontsize=8)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", frameon=False, fontsize=7)
    return figure


def _by_forgery(moves: Sequence[Move]) -> list[tuple[str, list[Move]]]:
    """Return the moves of each forgery in each game: games differ too much to be thrown together."""
    ordered = sorted(moves, key=_name)
    return [(name, list(own)) for name, own in groupby(ordered, key=_name)]


def _name(move: Move) -> str:
    return f"{move.forgery}, {move.game}" if move.game else move.forgery
