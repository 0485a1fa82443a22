"""Every attack against every defense, from Python."""

from pathlib import Path
from typing import Any

from fedsim.api.overrides import as_text, overrides_of
from fedsim.api.runs import Runs, load_all
from fedsim.lab.compare import compare as play_comparison
from fedsim.lab.compare import comparison_of


def compare(*arguments: str, into: str | Path | None = None, jobs: int = 1, **settings: Any) -> Runs:
    """Compare attacks with defenses: `fedsim.compare(attack=["ilrg", "idlg"], defense=["none", "noise"])`.

    An entry with settings is a dict: {"noise": {"sigma": 0.1}}. With jobs=2 and more, runs are processes: a
    script needs `if __name__ == "__main__":`. Called again with the same `into`, it runs what is missing.
    """
    own: dict[str, Any] = {
        key: settings.pop(key) for key in ("attack", "defense", "seeds") if key in settings
    }
    if into is not None:
        own["into"] = str(Path(into).expanduser().resolve())
    asked = [f"{key}={as_text(key, value)}" for key, value in own.items()]
    comparison = comparison_of([*asked, f"jobs={jobs}", *overrides_of(arguments, settings)])
    folder = play_comparison(comparison).path
    return Runs(folder, load_all(folder / "cells").runs)
