"""One self-contained HTML file: a template filled in, figures inlined and saved beside it."""

import base64
import io
from pathlib import Path
from typing import Any

import jinja2
from matplotlib.figure import Figure

from fedsim.runfolder import as_figure
from fedsim.storage import Storage


def write_page(path: Path, template: str, figures: dict[str, Figure], **values: Any) -> Path:
    """Fill a template, save its figures under figures/ as PNG, and write the page."""
    storage = Storage(path.parent)
    pictures = {name: _inline(figure, storage, f"figures/{name}.png") for name, figure in figures.items()}
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("fedsim.report"),
        autoescape=True,  # a client's words end up in the page
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["figure"] = as_figure
    page = environment.get_template(template).render(pictures=pictures, **values)
    storage.write_text(path.name, page)
    return path


def _inline(figure: Figure, storage: Storage, name: str) -> str:
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=150)
    storage.write(name, image.getvalue())
    return "data:image/png;base64," + base64.b64encode(image.getvalue()).decode()
