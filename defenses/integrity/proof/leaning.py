"""What lies between claimed weights and recomputed ones, added up: rounding does not lean one way."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from fedsim.core.types import Weights

STRAIGHT = 2.5  # sum of the errors of intervals, in units of what independent ones come to; honest: up to 1.5


@dataclass
class Leaning:
    """The sum of the errors of intervals, and of their squares."""

    total: dict[str, Tensor] = field(default_factory=dict)
    squares: float = 0.0

    @classmethod
    def of_all(cls, shares: "Sequence[Leaning]") -> "Leaning":
        """Return what several have added up together."""
        total = dict[str, Tensor]()
        for share in shares:
            for name, gap in share.total.items():
                total[name] = total[name] + gap if name in total else gap
        return cls(total=total, squares=sum(share.squares for share in shares))

    def add(self, end: Weights, claimed: Weights) -> None:
        """Add what lies between an interval's end and the weights that are claimed for it."""
        for name, tensor in end.items():
            if tensor.is_floating_point():
                gap = claimed[name].double() - tensor.double()
                self.total[name] = self.total[name] + gap if name in self.total else gap
                self.squares += float((gap * gap).sum())

    def problem(self, chance: float | None = None) -> str:
        """Say how far all errors lean one way, if that is further than chance explains; else nothing.

        chance: what independent errors come to; None: by those added, which a cheat can make larger.
        """
        chance = math.sqrt(self.squares) if chance is None else chance
        length = math.sqrt(sum(float((gap * gap).sum()) for gap in self.total.values()))
        if length > STRAIGHT * chance:
            return f"what is claimed leans one way: l2 {length:.3g} in all, by chance {chance:.3g}"
        return ""
