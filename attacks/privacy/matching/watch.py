"""Keeps the best of a search while it runs: for the time limit, for Ctrl-C, and for a diverging run."""

import math
import time
from collections.abc import Callable

import torch
from torch import Tensor


class Diverged(Exception):
    """The objective is no number any more."""


class TimeIsUp(Exception):
    """The time budget is used up."""


class Watch:
    """Sees every step of one search, and holds its best variables."""

    def __init__(self, deadline: float, advance: Callable[[int, str], None]) -> None:
        """Set when to stop (time.perf_counter), and what to tell about progress."""
        self.deadline = deadline
        self.advance = advance
        self.shown = 0.0
        self.trace: list[float] = []
        self.value = math.inf
        self.best: list[Tensor] = []

    def see(self, value: float, variables: list[Tensor]) -> None:
        """Take note of the variables' objective; ends a search that diverged or is out of time."""
        if not math.isfinite(value):
            raise Diverged
        self.trace.append(value)
        if value < self.value:
            self.value = value
            if not self.best:
                self.best = [variable.detach().clone() for variable in variables]
            else:
                with torch.no_grad():
                    for kept, variable in zip(self.best, variables, strict=True):
                        kept.copy_(variable)
        now = time.perf_counter()
        if now > self.shown + 0.1:
            self.shown = now
            self.advance(len(self.trace), f"objective {self.value:.3g}")
        self.check_time()

    def settle(self, value: float, variables: list[Tensor]) -> None:
        """Keep these variables, whatever was better on the way."""
        if not math.isfinite(value):
            raise Diverged
        self.trace.append(value)
        self.value, self.best = value, [variable.detach().clone() for variable in variables]

    def check_time(self) -> None:
        """End a search that is out of time."""
        if time.perf_counter() > self.deadline:
            raise TimeIsUp

    def forget(self) -> None:
        """Begin again."""
        self.trace.clear()
        self.value = math.inf
        self.best = []
