"""Five thousand lines of Shakespeare's comedies and tragedies, shipped with the package."""

from fedsim.core.settings import whole
from fedsim.data.images import ASSETS, Dataset
from fedsim.data.texts import labelled_lines, text_data
from fedsim.data.wordpieces import SPECIAL


def shakespeare_small(*, length: int = 16, vocabulary: int = 1500, goal: str = "class") -> Dataset:
    """Shakespeare inside the package: 4,500 + 500 lines; comedy or tragedy, or what comes next."""
    whole("data.vocabulary", vocabulary, 2 * len(SPECIAL))
    lines, labels, classes = labelled_lines((ASSETS / "shakespeare_small.tsv").read_text(encoding="utf-8"))
    return text_data(
        lines,
        labels,
        classes=classes,
        length=length,
        vocabulary=vocabulary,
        goal=goal,
        test=500,
        source="shakespeare_small",
    )
