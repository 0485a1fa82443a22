"""`fedsim check`: run experiments, and compare their figures with what their yamls expect."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedsim.commands.settings import settings
from fedsim.core.errors import FedsimError, in_words, printable, suggestion

if TYPE_CHECKING:
    from fedsim.core.expectation import Expectation
    from fedsim.lab.check import Judgement

WITHIN, OUTSIDE, REFUSED = 0, 1, 3
RUN_PLACES = ("hydra.run.dir",)  # settings that say where results go
PLACES = {"sweep": ("hydra.sweep.dir",), "comparison": ("into", "hydra.run.dir")}


@click.command("check", short_help="are an experiment's figures as expected?")
@click.option("--under", type=float, metavar="MINUTES", help="All experiments of at most so many minutes.")
@settings
def command(overrides: tuple[str, ...], under: float | None) -> None:
    """Run experiments, and compare their figures with those under `expected` in their yamls.

    experiment=NAME or experiment=A,B, and settings of every run, such as seed=7 (of a comparison, its first
    seed). With FOLDER experiment=NAME nothing runs: what the folder holds is judged.

    Exit status: 0 all within their ranges, 1 one outside or missing, 3 could not be judged.
    """
    from fedsim.commands.cli import complain

    worst, said = WITHIN, list[str]()
    try:
        folders = [word for word in overrides if "=" not in word or Path(word).is_dir()]
        given = [word for word in overrides if word not in folders]
        names, others = _named(given, under)
        if folders:
            worst = _check_there(folders, names, others)
            names = []
    except FedsimError as error:
        complain(in_words(error))
        sys.exit(REFUSED)
    for name in names:
        try:
            status, words = _check(name, others)
        except FedsimError as error:  # it does not keep the others from being checked
            status, words = REFUSED, f"{name}: could not be judged"
            complain(in_words(error))
        worst = max(worst, status)
        said.append(words)
    for line in said:
        print(line)
    sys.exit(worst)


def _named(overrides: Sequence[str], under: float | None) -> tuple[list[str], list[str]]:
    """Return the experiments that are asked for, and the other settings."""
    from fedsim.config.catalog import entries, names
    from fedsim.config.compose import key, parsed

    given = parsed(overrides)
    others = [str(override.input_line) for override in given if key(override) != "experiment"]
    chosen = [text for o in given if key(o) == "experiment" for text in _values(str(o.input_line))]
    if bool(chosen) == (under is not None):
        raise FedsimError("check: expected experiment=NAME, experiment=A,B or --under MINUTES, one of them")
    if under is not None:
        chosen = [e.name for e in entries("experiment") if e.minutes is not None and e.minutes <= under]
        if not chosen:
            raise FedsimError(f"check: no experiment says that it takes at most {under:g} minutes")
    for name in chosen:
        if name not in (known := names("experiment")):
            raise FedsimError(
                f"experiment={name}: no such yaml.{suggestion(name, known)} Remedy: fedsim list experiment."
            )
    if len(chosen) > 1 and (places := [text for text in others if text.startswith(("hydra.", "into="))]):
        raise FedsimError(f"check: {places[0]}: several experiments need a folder each")
    return chosen, others


def _values(override: str) -> list[str]:
    """Return what a setting lists."""
    return [text.strip() for text in override.partition("=")[2].strip("[]").split(",")]


def _check_there(folders: Sequence[str], names: Sequence[str], others: Sequence[str]) -> int:
    """Judge what there is."""
    from fedsim.config.compose import composed
    from fedsim.storage.runfolder import RunFolder

    if len(folders) != 1 or len(names) != 1 or others:
        raise FedsimError("check: expected FOLDER experiment=NAME, or settings alone")
    found, folder = composed([f"experiment={names[0]}"]), RunFolder(Path(folders[0]))
    if folder.kind != found.kind:
        raise FedsimError(f"{folder.path}: expected a {found.kind}, as {names[0]} is, got a {folder.kind}")
    status, words = _judged(names[0], folder.path)
    print(words)
    return status


def _check(name: str, others: Sequence[str]) -> tuple[int, str]:
    """Run an experiment as `fedsim experiment=NAME` does, and judge its folder."""
    from fedsim.commands.cli import complain
    from fedsim.commands.run import kind_of, play
    from fedsim.config.compose import composed, quoted

    overrides = [f"experiment={name}", *others]
    kind = kind_of(overrides)
    folder, place = _place(overrides, kind), []
    if folder is None:
        folder = composed([overrides[0], f"name={name}"]).folder.resolve()
        place = [f"{PLACES.get(kind, RUN_PLACES)[-1]}={quoted(str(folder))}"]
    _expected(name)
    there = (folder / "config.yaml").exists()
    try:
        play([*overrides, *place])
    except click.exceptions.Exit:
        pass  # some of its runs failed, and were named: what is expected of them is missing
    except FedsimError as error:
        if there or not (folder / "config.yaml").exists():  # an earlier run's figures are not this one's
            raise
        complain(in_words(error))  # it began: its figures are missing
    return _judged(name, folder)


def _place(overrides: Sequence[str], kind: str) -> Path | None:
    """Return where the user wants the results."""
    from fedsim.config.compose import key, parsed

    given = {key(override): str(override.value()) for override in parsed(overrides)}
    named = [given[name] for name in PLACES.get(kind, RUN_PLACES) if name in given]
    return Path(named[0]).resolve() if named else None


def _judged(name: str, path: Path) -> tuple[int, str]:
    """Print the table of an experiment's figures; return the exit status, and a line that sums it up."""
    from fedsim.lab.check import Outcome, check_folder
    from fedsim.storage.runfolder import RunFolder

    judged = check_folder(RunFolder(path), _expected(name))
    _print(judged)
    wrong = sum(judgement.outcome is not Outcome.WITHIN for judgement in judged)
    counted = f"{len(judged) - wrong} of {len(judged)} figures within their ranges"
    return (OUTSIDE if wrong else WITHIN), printable(f"{name}: {counted} ({path.resolve()})", keep="")


def _expected(name: str) -> "Sequence[Expectation]":
    from fedsim.config.compose import composed

    if not (expected := composed([f"experiment={name}"]).expected):
        raise FedsimError(
            f"experiment={name}: nothing is expected of it. Remedy: figures and ranges under `expected` in "
            "its yaml; docs/figures.md shows how."
        )
    return expected


def _print(judged: "Sequence[Judgement]") -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("figure", "where", "range", "got", "verdict")
    for one in judged:
        cells = (one.figure, one.about, one.range, one.shown, str(one.outcome))
        table.add_row(*(Text(printable(cell, keep="")) for cell in cells))
    Console(width=110).print(table)
