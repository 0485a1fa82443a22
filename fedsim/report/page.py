"""One self-contained HTML file: a template filled in, figures inlined and saved beside it."""

import base64
import io
import os
import warnings
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
from matplotlib.figure import Figure

from fedsim.core.errors import printable
from fedsim.storage.files import as_file_name
from fedsim.storage.folder import Storage
from fedsim.storage.scores import as_figure


def write_page(path: Path, template: str, figures: dict[str, Figure], **values: Any) -> Path:
    """Fill a template, save its figures under figures/ as PNG, and write the page."""
    storage = Storage(path.parent)
    pictures = {
        name: _inline(figure, storage, f"figures/{as_file_name(name)}.png")
        for name, figure in figures.items()
    }
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("fedsim.report"),
        autoescape=True,  # a client's words end up in the page
        finalize=_harmless,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["figure"] = as_figure
    page = environment.get_template(template).render(pictures=pictures, **values)
    storage.write_text(path.name, page)
    return path


def link(*names: str) -> str:
    """Return a link from a page to a file beside or below it, whatever its folders are called."""
    return "./" + "/".join(quote(os.fsencode(name), safe="") for name in names)


def _harmless(value: Any) -> Any:
    """Let no text into a page that a reader cannot see, or that turns what he reads around."""
    return printable(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def _inline(figure: Figure, storage: Storage, name: str) -> str:
    image = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a box is drawn in its place
        figure.savefig(image, format="png", dpi=150)
    storage.write(name, image.getvalue())
    return "data:image/png;base64," + base64.b64encode(image.getvalue()).decode()
