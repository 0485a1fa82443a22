"""What all figures share: sizes, colours by light and by dark, and words of others as labels."""

import textwrap
from collections.abc import Iterable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import EngFormatter

from fedsim.core.errors import printable

NARROW = 3.4  # inches: a phone shows a figure of this width as it was drawn
# Red says that something leaked, and nothing else.
LEAK, PLAIN = "#b3261e", "#2a6f97"  # what an attack got; any other measurement
INK, SOFT, TRUE = "#1f2933", "#52606d", "#8795a3"  # words, lesser words, what is true
BLIND, PAPER, CELL = "#4d6a87", "#fefefe", "#000000"  # baselines; the page below; words in a coloured cell
WARN, BREACH = "#b7791f", "#6b2fa0"
LINES = (PLAIN, WARN, "#2f855a", BREACH, "#0f7f8c", "#8a5a44", SOFT, "#a8518a")  # one of many
DARK = {  # the same on a dark page
    LEAK: "#ff8a7a",
    INK: "#e6eaef",
    SOFT: "#a9b4c0",
    TRUE: "#7d8b99",
    BLIND: "#a3bbd3",
    PAPER: "#1b2127",
    CELL: "#ffffff",
    PLAIN: "#6cb4e0",
    BREACH: "#cda0f0",
    WARN: "#f0b354",
    "#2f855a": "#68c494",
    "#0f7f8c": "#56c5d1",
    "#8a5a44": "#d2a184",
    "#a8518a": "#e79acb",
}
LARGE, SMALL = 9.5, 8.5  # points of titles and of labels
LETTERS = 12.5  # of a title, to an inch
ROUNDING = 1e-5  # of its values: a curve that moves by less is drawn flat
MANY = 1500  # points: beyond, they are drawn as pixels, or a page would hold megabytes of them


def literal(words: str, longest: int = 80) -> str:
    """Return words of others as a label: in one line, not too long, and no formula to matplotlib."""
    shown = printable(words, keep="")[:longest].replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown  # a legend leaves out what begins so


def wrapped(words: str, width: int, lines: int) -> str:
    """Return words of others as a label of several lines."""
    return "\n".join(map(literal, textwrap.wrap(printable(words, keep=""), width)[:lines]))


def clean(axes: Axes) -> None:
    """Leave out the lines above and beside a panel, and give its words a size that can be read."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(labelsize=SMALL)
    for axis in (axes.xaxis, axes.yaxis):
        axis.label.set_fontsize(SMALL)
        axis.label.set_color(INK)


def titled(figure: Figure, words: str) -> None:
    """Write a title above a figure, from its left edge, in as many lines as its width asks for."""
    width = round(LETTERS * figure.get_figwidth())
    figure.suptitle(wrapped(words, width, 3), x=0.012, ha="left", fontsize=LARGE, color=INK)


def in_bytes(axis: Axis) -> None:
    """Label an axis with sizes as they are said: 4 MB, not 4 below a 1e6 at the axis' end."""
    axis.set_major_formatter(EngFormatter(unit="B", sep="\N{NO-BREAK SPACE}"))


def settle(axes: Axes, values: Iterable[float]) -> None:
    """Draw what differs by rounding alone as a flat line: its last digits are no mountains."""
    if axes.get_yscale() != "linear":
        return
    axes.ticklabel_format(axis="y", useOffset=False)
    known = np.array([value for value in values if np.isfinite(value)])
    if not len(known):
        return
    middle, size = float((known.max() + known.min()) / 2), float(np.abs(known).max())
    if float(np.ptp(known)) <= ROUNDING * size:
        width = 0.1 * size or 1.0
        axes.set_ylim(middle - width, middle + width)


def marked(axes: Axes, places: Sequence[float], heights: Sequence[float], leaks: Sequence[bool]) -> None:
    """Draw an attack's curve: red where it got more than a blind guess."""
    axes.plot(places, heights, color=SOFT, lw=1.3)
    for leaking in (False, True):
        own = [(x, y) for x, y, found in zip(places, heights, leaks, strict=True) if found == leaking]
        if own:
            colour = LEAK if leaking else SOFT
            label = "more than a blind guess" if leaking else None
            axes.plot([x for x, _ in own], [y for _, y in own], "o", ms=4.5, color=colour, label=label)


def cell(column: int, row: int, colour: str, strength: float) -> Rectangle:
    """Return a cell of a table in a colour; at strength 0 the page shows through, be it light or dark."""
    return Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=colour, alpha=strength, edgecolor="none")
