"""Clients that do what no client should, in a round of their choice. Other processes import them, too."""

import os
import sys
import time
from typing import NoReturn

from fedsim.core.interfaces import Behaviour
from fedsim.core.training import Claim, LocalWork, honest


class Hostile(Behaviour):
    """Does something else than the work, in one round."""

    def __init__(self, *, round: int = 1) -> None:
        self.round = round

    def train(self, work: LocalWork) -> Claim:
        """Misbehave in that round."""
        return honest(work) if work.round != self.round else self.misbehave(work)

    def misbehave(self, work: LocalWork) -> Claim:
        """Do the worst."""
        raise NotImplementedError


class Dies(Hostile):
    """Takes its process with it."""

    def misbehave(self, work: LocalWork) -> NoReturn:
        """End the process at once."""
        os._exit(1)


class Sleeps(Hostile):
    """Never answers."""

    def misbehave(self, work: LocalWork) -> Claim:
        """Sleep for days."""
        time.sleep(1e6)
        return honest(work)


class Stuck(Hostile):
    """Never answers, and ignores whoever interrupts it."""

    def misbehave(self, work: LocalWork) -> NoReturn:
        """Catch everything."""
        while True:
            try:
                time.sleep(1e6)
            except BaseException:
                continue


class Exits(Hostile):
    """Leaves as if all were well."""

    def misbehave(self, work: LocalWork) -> NoReturn:
        """Exit with status 0."""
        sys.exit(0)


class Rants(Hostile):
    """Fails with words that no table, page or terminal should take as they are."""

    def misbehave(self, work: LocalWork) -> NoReturn:
        """Raise them."""
        raise ValueError("\ud800 \x1b]0;owned\x07 \u202e <script>alert(1)</script> [bold]" + "x" * 100_000)


class Swells(Hostile):
    """Sends numbers that are finite, and overflow when they are weighted."""

    size = 3.3e38

    def misbehave(self, work: LocalWork) -> Claim:
        """Blow up the update."""
        claim = honest(work)
        update = {name: tensor.sign().mul(self.size) for name, tensor in claim.update.items()}
        return Claim(update=update, trace=claim.trace, batches=claim.batches)


class Swells30(Swells):
    """Sends numbers that do not overflow, but wreck the model for all others."""

    size = 1e30


class Swells12(Swells):
    """The same, a round later."""

    size = 1e12
