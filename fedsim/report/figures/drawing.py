"""A matplotlib figure as SVG: words stay words, and a dark page gets light ones."""

import io
import warnings
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from fedsim.report.figures.style import DARK, INK

POINT = 96 / 72  # CSS pixels
# No date and no random names: the same figure is the same file.
WRITING: Any = {"svg.fonttype": "none", "svg.hashsalt": "fedsim", "svg.image_inline": True}


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """An SVG file, and its size in CSS pixels."""

    content: bytes
    width: int
    height: int


def as_svg(figure: Figure) -> Drawn:
    """Draw a figure; its file names light colours, and within it a style sheet those of a dark page."""
    file = io.BytesIO()
    with warnings.catch_warnings(), matplotlib.rc_context(WRITING):
        warnings.filterwarnings("ignore", "Glyph .* missing")  # the reader's own fonts may have it
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    width, height = (round(POINT * 72 * inches) for inches in figure.get_size_inches())
    content = file.getvalue().replace(b"</defs>", _dark_style() + b"</defs>", 1)
    return Drawn(content=content, width=width, height=height)


def _dark_style() -> bytes:
    """Return rules that change colours by name: a program that knows no style sheets shows the light ones."""
    rules = [f'text:not([style*="fill:"]) {{ fill: {DARK[INK]} !important }}']
    for light, dark in DARK.items():
        for use in ("fill", "stroke"):
            rules.append(f'[style*="{use}: {light}"] {{ {use}: {dark} !important }}')
    joined = " ".join(rules)
    return f'<style type="text/css">@media (prefers-color-scheme: dark) {{ {joined} }}</style>'.encode()
