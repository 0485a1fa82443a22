"""Figures of reports as files of their own: SVG for pages, PDF for papers."""

import io
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from fedsim.core.errors import FedsimError
from fedsim.report.figures.drawing import as_svg
from fedsim.report.write import drawings_of
from fedsim.storage.files import as_file_name, write_whole
from fedsim.storage.manifest import MANIFEST
from fedsim.storage.runfolder import RunFolder

FONTS: Any = {"pdf.fonttype": 42}  # as outlines of TrueType, which journals take


def write_figures(runs: Sequence[Path], into: Path, form: str) -> list[Path]:
    """Draw the figures of run folders again, each run's into a folder of its own; return their files."""
    if any((folder / MANIFEST).exists() for folder in (into.resolve(), *into.resolve().parents)):
        raise FedsimError(f"--figures {into}: that is in a run folder. Remedy: a folder outside of it.")
    written, used = list[Path](), set[str]()
    for number, path in enumerate(runs):
        name = as_file_name(path.resolve().name)
        place = into / (f"{number}_{name}" if name in used else name)
        used.add(name)
        for title, figure in drawings_of(RunFolder(path)).items():
            content = as_svg(figure).content if form == "svg" else as_pdf(figure)
            write_whole(file := place / f"{as_file_name(title)}.{form}", content)
            written.append(file)
    if not written:
        raise FedsimError(f"{', '.join(map(str, runs))}: no figures there. Remedy: a run with scores.")
    return written


def as_pdf(figure: Figure) -> bytes:
    """Draw a figure as PDF; the same figure is the same file."""
    file = io.BytesIO()
    with warnings.catch_warnings(), matplotlib.rc_context(FONTS):
        warnings.filterwarnings("ignore", "Glyph .* missing")
        figure.savefig(file, format="pdf", metadata={"CreationDate": None})
    return file.getvalue()
