"""Every attack against every defence, from Python."""

from datetime import datetime
from pathlib import Path
from typing import Any

from fedsim.api.overrides import as_text, overrides_of
from fedsim.api.runs import Runs, load_all
from fedsim.core.errors import FedsimError
from fedsim.lab.compare import compare as play_grid
from fedsim.lab.compare import parse
from fedsim.report.comparison import write_comparison
from fedsim.storage.folder import Storage


def compare(*arguments: str, into: str | Path | None = None, jobs: int = 2, **settings: Any) -> Runs:
    """Compare attacks with defences: `fedsim.compare(attack=["ilrg", "idlg"], defense=["none", "noise"])`.

    An entry with settings is a dict: {"noise": {"sigma": 0.1}}. Runs are processes: a script that calls this
    needs `if __name__ == "__main__":`. Called again with the same `into`, only what is missing runs.
    """
    own = [key for key in ("attack", "defense", "seeds") if key in settings]
    asked = [f"{key}={as_text(key, settings.pop(key))}" for key in own]
    grid, _, _ = parse([*asked, *overrides_of(arguments, settings)])
    folder = Path(into or f"runs/{datetime.now():%Y-%m-%d/%H-%M-%S-%f}_comparison").expanduser().resolve()
    with Storage(folder).claimed():
        try:
            problems = play_grid(grid, folder, jobs)
        finally:  # an interrupted comparison shows what it has
            if Storage(folder).has("settings.json"):
                write_comparison(grid, folder)
    if problems:
        raise FedsimError(f"{len(problems)} runs in {folder} failed; the first: {problems[0]}")
    return Runs(folder, load_all(folder / "cells").runs)
