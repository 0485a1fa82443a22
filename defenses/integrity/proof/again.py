"""Intervals of a trace, done again: which, in what ways, and how far each may end from what was claimed.

A generator yields intervals to be computed and is sent the weights that they end at. So plain SGD (verify.py)
and a user's own loop, which cannot be called step by step, are judged by the same rules.
"""

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fedsim.core.training import Trace
from fedsim.core.types import Weights
from fedsim.defenses.integrity.proof.distances import distance
from fedsim.defenses.integrity.proof.expected import Rejected, Thoroughness, Work
from fedsim.defenses.integrity.proof.reproduction import SAFETY, Variation
from fedsim.defenses.integrity.proof.sampling import chosen_places

PLAIN = Variation(name="the same")
Shown = Callable[[int], Sequence[Any]]  # the batches of an interval, checked


@dataclass(frozen=True, kw_only=True, eq=False)
class Interval:
    """Steps between two checkpoints that are to be done again, in a way."""

    place: int
    span: range
    batches: Sequence[Any]
    way: Variation = PLAIN


Asked = Generator[Interval, Weights, None]


def done_again(
    trace: Trace,
    how: Thoroughness,
    challenge: torch.Generator,
    work: Work,
    shown: Shown,
    ways: Sequence[Variation],
    exact: bool = False,
) -> Asked:
    """Yield the intervals that a challenge names; sent where they end, reject the one that ends elsewhere.

    ways: in which an honest machine may differ, for limits that are widened; exact: this one does not differ.
    """
    work.places = share_of(chosen_places(trace, how, challenge), how)
    for place in work.places:
        interval = Interval(place=place, span=trace.span(place), batches=shown(place))
        before, claimed = trace.checkpoints[place : place + 2]
        end = yield interval
        gap, limit = distance_of_states(how.distance, end, claimed), how.delta
        length = distance_of_states(how.distance, nothing(before) if trace.gradient else before, claimed)
        if limit < gap <= how.widen * length and math.isfinite(gap):
            # Where rounding grows, honest machines differ, too: by what is measured, and by a small share of
            # the interval's own length at most, so that nobody is carried off by it.
            spread = 0.0
            for way in ways:
                other = yield Interval(place=place, span=interval.span, batches=interval.batches, way=way)
                spread = max(spread, distance_of_states(how.distance, end, other))
            limit = max(limit, min(SAFETY * spread, how.widen * length))
        work.steps += len(interval.span)
        work.looked += 1
        work.largest = gap if work.largest is None else max(work.largest, gap)
        work.limit = limit if work.limit is None else max(work.limit, limit)
        work.still += length <= limit
        if not gap <= limit:
            reason = f"{how.distance} {gap:.3g} from what was claimed, at most {limit:.3g}"
            raise Rejected("step", reason, interval.span[0])
        if gap > 0 and how.strict:
            work.leaning.add(end, claimed)
        if exact and gap > 0:
            other = yield interval
            if distance_of_states(how.distance, end, other) == 0:  # nor does it differ from itself
                reason = f"{how.distance} {gap:.3g} from the bits that the machine that it names computes"
                raise Rejected("bits", reason, interval.span[0])


def answered(asked: Asked, again: Callable[[Interval], Weights]) -> None:
    """Let a function do all the intervals that are asked for."""
    try:
        interval = next(asked)
        while True:
            interval = asked.send(again(interval))
    except StopIteration:
        return


def share_of(places: Sequence[int], how: Thoroughness) -> list[int]:
    """Return which of the intervals are this verifier's, where several share them."""
    number, others = how.share
    return list(places[number::others])


def distance_of_states(kind: str, one: Weights, other: Weights) -> float:
    """Return the distance of what is real in two states; infinite, where whole numbers differ."""
    real = {name: tensor for name, tensor in one.items() if tensor.is_floating_point()}
    if one.keys() != other.keys() or not all(
        tensor.shape == other[name].shape and (name in real or torch.equal(tensor, other[name]))
        for name, tensor in one.items()
    ):
        return math.inf
    return distance(kind, real, {name: other[name] for name in real})


def nothing(like: Weights) -> Weights:
    """Return zeros in the form of weights: a gradient that is none."""
    return {name: torch.zeros_like(tensor) for name, tensor in like.items()}


def check_progress(work: Work) -> None:
    """Refuse a proof whose intervals are mostly too short to tell work from none, or lean one way."""
    if 2 * work.still > work.looked:
        reason = f"{work.still} of {work.looked} intervals are no longer than the error that is allowed"
        raise Rejected("progress", f"{reason}: who did nothing would pass")
    if problem := work.leaning.problem():
        raise Rejected("drift", problem)
