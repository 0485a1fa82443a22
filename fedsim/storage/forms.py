"""What the inputs of a run are, for whoever shows them: inputs.json, of tokens and of rows."""

import json
from dataclasses import asdict
from typing import Any

from fedsim.core.inputs import Inputs, Tokens, inputs_from
from fedsim.storage.files import reading
from fedsim.storage.folder import Storage

INPUTS_FILE = "inputs.json"


def write_inputs(storage: Storage, inputs: Inputs | None) -> None:
    """Keep what the inputs are, unless they are images."""
    if inputs is None or storage.has(INPUTS_FILE):
        return
    if isinstance(inputs, Tokens):
        told: dict[str, Any] = {"tokens": asdict(inputs)}
    else:
        told = {"columns": [asdict(column) for column in inputs.columns]}
    storage.write_text(INPUTS_FILE, json.dumps(told, ensure_ascii=False) + "\n")


def read_inputs(storage: Storage) -> Inputs | None:
    """Return what the inputs are; None: images."""
    if (content := storage.read(INPUTS_FILE)) is None:
        return None
    with reading(storage.root / INPUTS_FILE):
        told = json.loads(content)
        return inputs_from(told.get("tokens", told))
