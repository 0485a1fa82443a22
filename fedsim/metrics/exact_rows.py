"""Rows of a table that were recovered without a fault."""

from fedsim.core.interfaces import Metric
from fedsim.core.types import Reconstruction, Score, Truth
from fedsim.metrics.row_matching import right_cells, surplus_rows


class ExactRows(Metric):
    """Share of the batch's rows of which every cell is right, rows optimally matched."""

    bounded = True
    title = "exact rows"
    unit = "share of rows"

    def score(self, guess: Reconstruction, truth: Truth) -> Score | None:
        """Count them."""
        if (right := right_cells(guess, truth)) is None:
            return None
        rows = right.all(dim=1).double()
        value = float(rows.mean()) * surplus_rows(guess, truth)
        return Score(metric="exact_rows", value=value, per_example=tuple(rows.tolist()))
