"""One self-contained HTML file: a template filled in, figures inlined and saved beside it."""

import base64
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
from matplotlib.figure import Figure

from fedsim.core.errors import printable
from fedsim.report.figures.drawing import as_svg
from fedsim.storage.files import as_file_name
from fedsim.storage.folder import Storage
from fedsim.storage.scores import as_figure

NARROW = 332  # CSS pixels: what a phone of 390 has left for a figure
LARGER = 1.35  # as much as a figure grows where there is room


@dataclass(frozen=True, kw_only=True)
class Inlined:
    """A figure as a page shows it: never smaller than it was drawn, so that its words stay readable."""

    source: str  # a data: address
    width: int  # in CSS pixels, as drawn
    height: int

    @property
    def is_wide(self) -> bool:
        """Whether a phone has to scroll to see all of it."""
        return self.width > NARROW

    @property
    def largest(self) -> int:
        """The width that it may grow to."""
        return round(LARGER * self.width)


def write_page(path: Path, template: str, figures: dict[str, Figure], **values: Any) -> Path:
    """Fill a template, save its figures under figures/ as SVG, and write the page."""
    storage = Storage(path.parent)
    pictures = {
        name: _inline(figure, storage, f"figures/{as_file_name(name)}.svg")
        for name, figure in figures.items()
    }
    page = environment().get_template(template).render(pictures=pictures, **values)
    storage.write_text(path.name, page)
    return path


def environment() -> jinja2.Environment:
    """Return what templates are filled with: nobody's words are markup."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("fedsim.report"),
        autoescape=True,  # a client's words end up in the page
        finalize=_harmless,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["figure"] = as_figure
    return made


def link(*names: str) -> str:
    """Return a link from a page to a file beside or below it, whatever its folders are called."""
    return "./" + "/".join(quote(os.fsencode(name), safe="") for name in names)


def _harmless(value: Any) -> Any:
    """Let no text into a page that a reader cannot see, or that turns what he reads around."""
    return printable(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def _inline(figure: Figure, storage: Storage, name: str) -> Inlined:
    drawn = as_svg(figure)
    storage.write(name, drawn.content)
    source = "data:image/svg+xml;base64," + base64.b64encode(drawn.content).decode()
    return Inlined(source=source, width=drawn.width, height=drawn.height)
