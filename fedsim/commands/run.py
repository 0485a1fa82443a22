"""`fedsim run`, or settings alone: what an experiment is, decides how it is run."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from fedsim.commands.settings import announce, play_many, settings
from fedsim.core.errors import FedsimError, printable


@click.command("run", short_help="play, attack, score, report")
@click.option("-m", "--multirun", is_flag=True, help="A sweep: one run for every combination of KEY=A,B.")
@click.option("--cfg", is_flag=True, help="Show the composed config and stop.")
@settings
def command(overrides: tuple[str, ...], multirun: bool, cfg: bool) -> None:
    """Play a federation, attack it, score the attack, write a report.

    KEY=VALUE are Hydra overrides of fedsim's configs: attack=idlg federation.rounds=5. A name is a yaml's
    (fedsim list) or module.Class of your own.
    """
    from fedsim.config.compose import as_text, composed, unvaried

    overrides = tuple(text for text in overrides if text != "job")  # `--cfg job`, as Hydra's own
    if cfg:
        print(as_text(composed(unvaried(overrides) if multirun else overrides).config), end="")
        return
    play(overrides, multirun)


def play(overrides: Sequence[str], multirun: bool = False) -> None:
    """Run what an experiment is, into a run folder, and say what came of it."""
    kinds: dict[str, Callable[[Sequence[str]], None]] = {
        "run": _run,
        "sweep": _sweep,
        "comparison": _compare,
        "game": _forge,
        "calibration": _calibrate,
    }
    if (kind := kind_of(overrides)) not in kinds:
        raise FedsimError(f"kind: expected one of {', '.join(kinds)}, got {kind!r}")
    kinds["sweep" if multirun and kind == "run" else kind](overrides)


def kind_of(overrides: Sequence[str]) -> str:
    """Return what an experiment is."""
    from fedsim.config.compose import composed, key, parsed

    # The others may be settings of a kind's own, such as a comparison's attack=[...] and seeds=3.
    telling = [str(o.input_line) for o in parsed(overrides) if key(o) in ("experiment", "kind")]
    return composed(telling).kind


def _run(overrides: Sequence[str]) -> None:
    from fedsim.config import build
    from fedsim.config.compose import composed
    from fedsim.lab.experiment import run
    from fedsim.lab.sweep import objective_of

    found = composed(overrides)
    try:
        folder = run(build.experiment(found.config), found.folder)
        objective_of(folder, found.config.objective)
        announce(folder)
    finally:
        _say_what_is_left(found.folder)


def _say_what_is_left(folder: Path) -> None:
    """After a run that did not complete, print its folder; remove one that was made for nothing."""
    from fedsim.storage.runfolder import RunFolder
    from fedsim.storage.status import Status

    if (folder / "config.yaml").exists():
        if RunFolder(folder).status is not Status.COMPLETE:
            print(printable(str(folder.resolve())))
    elif folder.is_dir() and not any(folder.iterdir()) and folder.resolve() != Path.cwd():
        folder.rmdir()
        date = folder.parent
        if re.fullmatch(r"\d{4}-\d{2}-\d{2}", date.name) and not any(date.iterdir()):
            date.rmdir()


def _sweep(overrides: Sequence[str]) -> None:
    from fedsim.lab.grid import Job
    from fedsim.lab.sweep import sweep, sweep_of
    from fedsim.storage.runfolder import RunFolder

    def ended(job: Job) -> None:
        if job.is_done:
            announce(RunFolder(job.path), last_line=False)

    chosen = sweep_of(overrides)
    play_many(chosen.folder.path, lambda: sweep(chosen, ended))


def _compare(overrides: Sequence[str]) -> None:
    from fedsim.commands.compare import compare_by

    compare_by(overrides)


def _forge(overrides: Sequence[str]) -> None:
    from fedsim.commands.forge import forge_by

    forge_by(overrides)


def _calibrate(overrides: Sequence[str]) -> None:
    from fedsim.commands.calibrate import calibrate_by

    calibrate_by(overrides)
