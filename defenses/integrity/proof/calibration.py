"""A delta and what it was measured for: it says nothing of another k, rate, model, batch size or machine."""

import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedsim.core.errors import FedsimError
from fedsim.core.types import Weights

FILE = "delta.json"  # in the run folder of a calibration


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The largest distance that honest recomputation may end at, with a margin, and where that was found."""

    delta: float
    distance: str
    every: int  # k
    learning_rate: float
    batch_size: int
    model: str  # digest of its tensors' names and shapes
    machines: list[str]  # between which it was measured
    intervals: int  # that were done again, on each

    def problem(
        self, *, every: int, learning_rate: float, batch_size: int, model: str, machine: str
    ) -> str | None:
        """Say for what else than this it was measured, or None."""
        asked = {"every": every, "learning_rate": learning_rate, "batch_size": batch_size, "model": model}
        names = {"every": "k", "learning_rate": "learning rate", "batch_size": "batch size", "model": "model"}
        for name, value in asked.items():
            if getattr(self, name) != value:
                found = "another" if name == "model" else f"{getattr(self, name):g}, not {value:g}"
                return f"delta was measured for {found} {names[name]}"
        return None if machine in self.machines else f"delta was not measured for the machine {machine!r}"


def shape_of(weights: Weights) -> str:
    """Return the digest of a model's form: names and shapes of its tensors."""
    form = [[name, list(tensor.shape)] for name, tensor in weights.items()]
    return hashlib.sha256(json.dumps(form, separators=(",", ":")).encode()).hexdigest()


def as_text(found: Iterable[Calibration]) -> str:
    """Write calibrations."""
    return json.dumps([asdict(one) for one in found], indent=1, allow_nan=False) + "\n"


def read_calibrations(path: Path) -> list[Calibration]:
    """Read what `fedsim calibrate` wrote: a file, or its run folder."""
    path = path / FILE if path.is_dir() else path
    try:
        return [calibration_from(one) for one in json.loads(path.read_text())]
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise FedsimError(
            f"{path}: expected calibrations ({error}). Remedy: fedsim calibrate writes them."
        ) from error


def calibration_from(content: dict[str, Any]) -> Calibration:
    """Return the calibration that a file or a proof holds; what is none raises a ValueError or TypeError."""
    found = Calibration(**content)
    kinds: dict[str, type] = {
        **{"delta": float, "distance": str, "every": int, "learning_rate": float, "batch_size": int},
        **{"model": str, "machines": list, "intervals": int},
    }
    for name, kind in kinds.items():
        if type(getattr(found, name)) is not kind:
            raise ValueError(f"{name}: expected {kind.__name__}")
    if not 0 <= found.delta < math.inf or not all(isinstance(name, str) for name in found.machines):
        raise ValueError("delta: expected a number, and names of machines")
    if not all(0 <= whole < 2**32 for whole in (found.every, found.batch_size, found.intervals)):
        raise ValueError("every, batch_size, intervals: expected numbers of steps and examples")
    return found
