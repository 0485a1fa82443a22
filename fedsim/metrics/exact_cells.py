"""Cells of a table that were recovered."""

from fedsim.core.inputs import Row
from fedsim.core.interfaces import Metric
from fedsim.core.settings import one_of
from fedsim.core.types import Reconstruction, Score, Truth
from fedsim.metrics.row_matching import categorical, right_cells, surplus_rows

COLUMNS = ("all", "categories", "numbers")


class ExactCells(Metric):
    """Share of the batch's cells that are right, rows optimally matched: categories, numbers within .2 %."""

    bounded = True
    title = "exact cells"
    unit = "share of cells"

    def __init__(self, *, columns: str = "all") -> None:
        """Choose which columns count."""
        self.columns = one_of("metric.exact_cells.columns", columns, COLUMNS)
        self.title = "exact cells" if columns == "all" else f"exact cells, {columns}"

    def score(self, guess: Reconstruction, truth: Truth) -> Score | None:
        """Count them."""
        right = right_cells(guess, truth)
        if right is None or not isinstance(truth.inputs, Row):
            return None
        chosen = categorical(truth.inputs)
        if self.columns == "all":
            chosen = chosen | True
        elif self.columns == "numbers":
            chosen = ~chosen
        if not bool(chosen.any()):
            return None
        name = "exact_cells" if self.columns == "all" else f"exact_{self.columns}"
        value = float(right[:, chosen].double().mean()) * surplus_rows(guess, truth)
        return Score(metric=name, value=value)
