"""Verifiers that share a proof: each does some of the intervals again; a lie in any of them rejects it."""

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import TypeVar

from fedsim.core.types import Verdict

Errand = TypeVar("Errand")


def judged_together(judge: Callable[[Errand], Verdict], errands: Sequence[Errand]) -> Verdict:
    """Let every verifier judge its share in a process of its own; return what they find together."""
    if len(errands) == 1:
        return judge(errands[0])
    with ProcessPoolExecutor(len(errands), mp_context=multiprocessing.get_context("spawn")) as processes:
        return merged(list(processes.map(judge, errands)))


def merged(verdicts: Sequence[Verdict]) -> Verdict:
    """Return one verdict for all shares: the first that rejects, or that all accept; work is added up."""
    first = next((verdict for verdict in verdicts if not verdict.accepted), verdicts[0])
    return replace(
        first,
        distance=max((v.distance for v in verdicts if v.distance is not None), default=None),
        limit=max((v.limit for v in verdicts if v.limit is not None), default=None),
        recomputed=sum(verdict.recomputed for verdict in verdicts),
        shown=sum(verdict.shown for verdict in verdicts),
        seconds=max(verdict.seconds for verdict in verdicts),
    )
