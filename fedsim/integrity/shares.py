"""Verifiers that share a proof: each does some of the intervals again; a lie in any of them rejects it."""

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import NamedTuple, TypeVar

from fedsim.core.types import Verdict
from fedsim.defenses.integrity.proof.again import check_progress
from fedsim.defenses.integrity.proof.expected import Rejected, Work

Errand = TypeVar("Errand")


class Share(NamedTuple):
    """What one of the verifiers finds."""

    verdict: Verdict
    works: Sequence[Work]  # of each proof of a chain, in the same order for all


def judged_together(judge: Callable[[Errand], Share], errands: Sequence[Errand]) -> Verdict:
    """Let every verifier judge its share in a process of its own; return what they find together."""
    if len(errands) == 1:
        return judge(errands[0]).verdict
    with ProcessPoolExecutor(len(errands), mp_context=multiprocessing.get_context("spawn")) as processes:
        return merged(list(processes.map(judge, errands)))


def merged(shares: Sequence[Share]) -> Verdict:
    """Return one verdict for all shares: the first that rejects, or that all accept; work is added up.

    Whether intervals are long enough and lean no way is judged by all of them: a share has too few.
    """
    verdicts = [share.verdict for share in shares]
    first = next((verdict for verdict in verdicts if not verdict.accepted), verdicts[0])
    if first.accepted:
        try:
            for works in zip(*(share.works for share in shares), strict=True):
                check_progress(Work.of_all(works))
        except Rejected as error:
            first = replace(first, accepted=False, check=error.check, reason=str(error))
    return replace(
        first,
        distance=max((v.distance for v in verdicts if v.distance is not None), default=None),
        limit=max((v.limit for v in verdicts if v.limit is not None), default=None),
        recomputed=sum(verdict.recomputed for verdict in verdicts),
        shown=sum(verdict.shown for verdict in verdicts),
        seconds=max(verdict.seconds for verdict in verdicts),
    )
