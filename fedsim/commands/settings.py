"""What commands have in common: settings as arguments, folders of yamls, and the words at the end."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fedsim.core.errors import FedsimError, printable

if TYPE_CHECKING:
    from fedsim.storage.runfolder import RunFolder

Function = TypeVar("Function", bound=Callable[..., Any])


def settings(function: Function) -> Function:
    """Let a command take KEY=VALUE ... and --config-dir."""

    def add_folder(context: click.Context, parameter: click.Parameter, value: Path | None) -> None:
        from fedsim.config.plugins import add_config_folder

        if value is not None:
            add_config_folder(value)

    folder = click.option(
        "--config-dir",
        type=click.Path(path_type=Path),
        expose_value=False,
        is_eager=True,
        callback=add_folder,
        help="A folder of your own yamls, beside fedsim's (also: FEDSIM_CONF).",
    )
    return folder(click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")(function))


def run_folder(text: str, command: str) -> "RunFolder":
    """Return the run folder that an argument names."""
    from fedsim.storage.runfolder import RunFolder

    if "=" in text and not Path(text).is_dir():
        raise FedsimError(f"expected a run folder first, got {text!r}: fedsim {command} RUN ...")
    return RunFolder(Path(text))


def permitted(overrides: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Take `allow=MODULE,...` out of the settings: whose code a stored config may run beside fedsim's."""
    given = [text for text in overrides if text.startswith("allow=")]
    names = [name.strip() for text in given for name in text.removeprefix("allow=").strip("[]").split(",")]
    return [text for text in overrides if text not in given], [name for name in names if name]


def play_many(folder: Path, play: Callable[[], object]) -> None:
    """Play many runs into a folder; say what failed of them, and where their report is, also after Ctrl-C."""
    from fedsim.lab.grid import RunsFailed

    try:
        play()
    except RunsFailed as error:
        for problem in error.problems:
            print(printable(f"fedsim: {problem}"), file=sys.stderr)
        tell_folder(folder)
        raise click.exceptions.Exit(1) from error
    except KeyboardInterrupt:
        tell_folder(folder)
        raise
    tell_folder(folder)


def tell_folder(folder: Path) -> None:
    """Print what came of it, where the report is, and as the last line the folder: scripts read it."""
    from fedsim.report.terminal import print_answer
    from fedsim.storage.runfolder import RunFolder

    print_answer(RunFolder(folder).summary())
    print(f"report: {printable(str((folder / 'report.html').resolve()), keep='')}")
    print(printable(str(folder.resolve()), keep=""))


def announce(folder: "RunFolder", *, last_line: bool = True) -> None:
    """Print the small table that ends a run, and where everything is."""
    from fedsim.report.terminal import print_summary

    print_summary(folder)
    if last_line:
        print(printable(str(folder.path.resolve()), keep=""))
