"""What all figures share: colours, and words of others as labels."""

import textwrap

from fedsim.core.errors import printable

TRUE, GUESSED = "#9aa5b1", "#d64545"
INK, BLIND = "#323f4b", "#627d98"  # BLIND: baselines
SHARES = ("leacc", "lnacc", "irec", "accuracy", "ssim", "embedding_cosine", "probability_cosine")  # 0 to 1


def literal(words: str, longest: int = 80) -> str:
    """Return words of others as a label: in one line, not too long, and no formula to matplotlib."""
    shown = printable(words, keep="")[:longest].replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown  # a legend leaves out what begins so


def wrapped(words: str, width: int, lines: int) -> str:
    """Return words of others as a label of several lines."""
    return "\n".join(map(literal, textwrap.wrap(printable(words, keep=""), width)[:lines]))


def clean(axes: object) -> None:
    """Leave out the lines above and beside a panel."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)  # type: ignore[attr-defined]
