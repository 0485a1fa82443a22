"""Small tables that read well in a terminal and in a notebook."""

import html
from collections.abc import Sequence

from fedsim.core.errors import printable


def text_table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table as lines of text: the first column to the left, figures to the right."""
    cells = [[printable(cell, keep="") for cell in row] for row in (heading, *rows)]
    widths = [max(len(row[place]) for row in cells) for place in range(len(heading))]
    lines = []
    for row in cells:
        first, *figures = (
            cell.ljust(width) if place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join((first, *figures)).rstrip())
    return "\n".join(lines)


def html_table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table as HTML."""

    def row(tag: str, cells: Sequence[str]) -> str:
        shown = (html.escape(printable(cell, keep="")) for cell in cells)
        return "<tr>" + "".join(f"<{tag}>{cell}</{tag}>" for cell in shown) + "</tr>"

    return "<table>" + row("th", heading) + "".join(row("td", cells) for cells in rows) + "</table>"
