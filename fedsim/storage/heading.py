"""What a run folder says of itself: its kind, its settings, how it stands. Read without torch."""

import json
import re
from typing import Any

from fedsim.core.errors import FedsimError
from fedsim.storage.files import reading
from fedsim.storage.folder import Storage

FORMAT = 2  # of run folders; 1 were those of fedsim 0.1, which had no number
CONFIG_FILE, SUMMARY_FILE = "config.yaml", "summary.json"
_HEADING = re.compile(r"format: (\d{1,9})\nkind: ([a-z]+)\n")


def read_config(storage: Storage) -> tuple[str, str]:
    """Return the text of config.yaml and the kind of run, if this version of fedsim understands it."""
    if (text := storage.read_text(CONFIG_FILE)) is None:
        raise FedsimError(
            f"{storage.root} is not a run folder: no config.yaml in it. Remedy: name a folder under runs/."
        )
    found = _HEADING.match(text)
    number = int(found[1]) if found else 1
    if found is None or number != FORMAT:
        remedy = "a newer fedsim" if number > FORMAT else "play it again, or read it with fedsim 0.1"
        raise FedsimError(
            f"{storage.root / CONFIG_FILE}: expected format {FORMAT}, got {number}. Remedy: {remedy}."
        )
    return text, found[2]


def read_summary(storage: Storage) -> dict[str, Any]:
    """Read summary.json; empty when the run did not get that far."""
    if (text := storage.read_text(SUMMARY_FILE)) is None:
        return {}
    with reading(storage.root / SUMMARY_FILE):
        return dict(json.loads(text))
