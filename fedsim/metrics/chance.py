"""How far a mean of scores gets from its baseline by chance: below that, a difference is no leak."""

import math
from collections.abc import Sequence
from statistics import fmean

SURE = 1.96  # standard errors: a 95 % interval


def chance(gaps: Sequence[float]) -> float:
    """Return how far the mean of these differences gets from 0 by chance; 0: none of them went the other way.

    Chance goes both ways alike, so its spread is judged by the differences on the other side of 0 than the
    mean. One batch that was recovered among many that were not is a large difference, and no chance.
    """
    middle = fmean(gaps) if gaps else 0.0
    against = [gap for gap in gaps if gap * middle < 0]
    if not against:
        return 0.0
    number = len(gaps)
    spread = math.sqrt(2 * sum(gap * gap for gap in against) / number)
    return SURE * spread / math.sqrt(number)


def chance_of_all(gaps: Sequence[float], chances: Sequence[float]) -> float:
    """Return the same of a mean over runs: as their batches show it (chances), or as seeds do, if more."""
    return max(math.hypot(*chances) / max(1, len(chances)), chance(gaps))
