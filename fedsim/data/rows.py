"""Rows of a table held in memory."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class ArrayRows:
    """Rows as float32, as exact as their numbers."""

    rows: Tensor  # float32 (N, 1, 1, width) in [0, 1]
    labels: Tensor

    def batch(self, indices: Tensor) -> Tensor:
        """Read the rows at these indices."""
        return self.rows[indices]
