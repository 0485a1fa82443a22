"""TensorBoard: event files in the run folder, so that `tensorboard --logdir runs` shows all runs."""

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Tracker
from fedsim.core.types import RoundResult


class TensorBoard(Tracker):
    """TensorBoard event files: a curve for every round's figures, final scores beside baselines, settings."""

    def __init__(self, *, folder: str = "tensorboard") -> None:
        if not folder or Path(folder).name != folder:
            raise FedsimError(f"tracking.folder: expected the name of a folder in the run's, got {folder!r}")
        self.folder = folder
        try:
            self._writer: Any = importlib.import_module("torch.utils.tensorboard").SummaryWriter
        except ImportError as error:
            raise FedsimError(
                f"tracking=tensorboard: tensorboard is not installed ({error}). "
                "Remedy: pip install 'fedsim-lab[tracking]', or tracking=none."
            ) from error
        self._open: Any = None
        self._last = 0

    def begin(self, name: str, settings: Mapping[str, str], folder: Path) -> None:
        """Open an event file, and write the settings as a table."""
        self._open = self._writer(log_dir=str(folder / self.folder))
        lines = [f"| {_cell(key)} | {_cell(value)} |" for key, value in settings.items()]
        self._open.add_text("settings", "\n".join(["| setting | value |", "|---|---|", *lines]))

    def round(self, result: RoundResult) -> None:
        """Add a point to the curves of accuracy and loss."""
        self._last = max(self._last, result.round)
        self._open.add_scalar("accuracy", result.accuracy, result.round)
        self._open.add_scalar("loss", result.loss, result.round)
        self._open.flush()

    def end(self, status: str, scores: Mapping[str, float], files: Mapping[str, Path]) -> None:
        """Add final scores and baselines at the last round, and where the report is."""
        for name, value in scores.items():
            self._open.add_scalar(f"final/{name}", value, self._last)
        self._open.add_text("status", status)
        for name, path in files.items():
            self._open.add_text(name, str(path))
        self._open.close()


def _cell(text: str) -> str:
    """Return a text for a cell of a table in Markdown."""
    return "".join(f"\\{c}" if c in "|`<>*_[]" else c for c in text.replace("\n", " "))
