"""Intervals of a trace, done again: which, in what ways, and how far each may end from what was claimed.

A generator yields intervals to be computed and is sent the weights that they end at. So plain SGD (verify.py)
and a user's own loop, which cannot be called step by step, are judged by the same rules.
"""

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from fedsim.core.training import MODEL, Trace
from fedsim.core.types import Weights
from fedsim.defenses.integrity.proof.distances import distance
from fedsim.defenses.integrity.proof.expected import Rejected, Thoroughness, Work
from fedsim.defenses.integrity.proof.reproduction import SAFETY, Variation
from fedsim.defenses.integrity.proof.sampling import chosen_places

PLAIN = Variation(name="the same")
FURTHEST = 64  # steps on: by then a bend of Adam's first moment has faded to a thousandth
Shown = Callable[[int], Sequence[Any]]  # the batches of an interval, checked


@dataclass(frozen=True, kw_only=True, eq=False)
class Interval:
    """Steps between two checkpoints that are to be done again, in a way."""

    place: int
    span: range
    batches: Sequence[Any]
    way: Variation = PLAIN
    start: Weights | None = None  # in place of the checkpoint that is claimed


Asked = Generator[Interval, Weights, None]
Found = Generator[Interval, Weights, tuple[float, float, Weights]]


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
        led = _way(trace, how, before, claimed)
        others = [[replace(interval, way=way)] for way in ways]
        gap, limit, end = yield from _nearest(how, claimed, led, end, others)
        work.steps += len(interval.span)
        work.looked += 1
        work.largest = gap if work.largest is None else max(work.largest, gap)
        work.limit = limit if work.limit is None else max(work.limit, limit)
        work.still += how.strict and led.length <= max(limit, granted(how))
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
        if gap > 0 and how.strict and trace.settings and place + 2 < len(trace.checkpoints):
            yield from _check_next(trace, how, interval, end, limit, shown, ways)


@dataclass(frozen=True, kw_only=True)
class Way:
    """How far an interval leads a model, and how far its numbers can tell one end from another."""

    length: float
    unit: float = 0.0  # of the largest weight, in its last place
    looped: bool = False  # a model with an optimizer and counters beside it


def granted(how: Thoroughness) -> float:
    """Return how far an interval may end from what is claimed, however long it is."""
    return how.delta if how.calibrated is None else min(how.calibrated, how.delta)


def _limits(how: Thoroughness, led: Way) -> tuple[float, float]:
    """Return how far a state may be from what is claimed, and how far its model may.

    Where rates are small a step is no longer than delta: so a model is granted a share of its way at most, or
    what its numbers cannot tell.
    """
    most, limit = how.widen * led.length, how.delta
    if how.calibrated is not None:
        limit = min(how.calibrated, max(how.delta, most))
    if how.widen == 0 or not (how.bounded and how.strict):
        return limit, limit
    near = min(limit, max(most, led.unit))
    return limit if led.looped else near, near


def _nearest(
    how: Thoroughness, claimed: Weights, led: Way, end: Weights, others: Sequence[Sequence[Interval]]
) -> Found:
    """Return how far what is claimed lies from where an interval ends, how far it may, and that end.

    Honest machines differ: where a ReLU changes sides, by whatever hangs on it. So what another honest way of
    computing leads to is as good; and where rounding grows, they may differ by what is measured, and by a
    small share of the interval's own length at most, so that nobody is carried off by it. others: the same in
    other ways, each an interval or several, one after another.
    """
    most, (whole, near) = how.widen * led.length, _limits(how, led)

    def missed(found: Weights) -> tuple[float, float]:
        """By how much, and how much it may: of the state, or of the model where that is what fails."""
        gap = distance_of_states(how.distance, found, claimed)
        if led.looped and gap <= whole and math.isfinite(gap):
            models = [{n: t for n, t in one.items() if n.startswith(MODEL)} for one in (found, claimed)]
            if (apart := distance_of_states(how.distance, *models)) > near:
                return apart, near
        return gap, whole

    gap, limit = missed(end)
    if gap <= limit or how.widen == 0 or not math.isfinite(gap):
        return gap, limit, end
    spread = 0.0
    for intervals in others:
        other: Weights | None = None
        for interval in intervals:
            other = yield interval if other is None else replace(interval, start=other)
        assert other is not None
        apart, allowed = missed(other)
        if apart <= allowed:
            return apart, allowed, other
        spread = max(spread, distance_of_states(how.distance, end, other))
    if how.calibrated is None and gap <= most:
        limit = max(limit, min(SAFETY * spread, most))
    return gap, limit, end


def _check_next(
    trace: Trace,
    how: Thoroughness,
    interval: Interval,
    end: Weights,
    limit: float,
    shown: Shown,
    ways: Sequence[Variation],
) -> Asked:
    """Take steps on from where an interval ended, here and by the claim: the two must not part.

    An optimizer may divide by what is next to nothing: then a bend of its state that is shorter than delta
    moves the weights by hundreds of thousands of times as much. One step shows it, unless its rate is zero:
    then as many as it takes until the model moves.
    """
    place = interval.place + 1
    first = trace.span(place)[0]
    left, number = len(trace.digests) - first, 1
    while True:
        span = range(first, first + number)
        step = Interval(place=place, span=span, batches=_batches(trace, shown, span))
        theirs = yield step
        led = _way(trace, how, trace.checkpoints[place], theirs)
        if number >= min(left, FURTHEST) or not _rests(trace, how, place, theirs, led):
            break
        number = min(2 * number, left, FURTHEST)
    mine = yield replace(step, start=end)
    others = [[replace(interval, way=way), replace(step, way=way)] for way in ways]
    gap, most, _ = yield from _nearest(how, theirs, led, mine, others)
    most = max(most, limit) if limit > how.delta else most  # what was widened goes on as wide
    if not gap <= most:
        reason = f"a step on, {how.distance} {gap:.3g} from where the claim leads, at most {most:.3g}"
        raise Rejected("step", reason, first)


def _batches(trace: Trace, shown: Shown, span: range) -> list[Any]:
    """Return the batches of steps that begin where an interval does, and may go on into the next."""
    places = range(span[0] // trace.every, span[-1] // trace.every + 1)
    return [batch for place in places for batch in shown(place)][: len(span)]


def _rests(trace: Trace, how: Thoroughness, place: int, theirs: Weights, led: Way) -> bool:
    """Say whether a model has moved too little to tell anything, or a tensor that will move not at all."""
    if how.widen * led.length < led.unit:
        return True
    now, last = trace.checkpoints[place], trace.model_in(trace.checkpoints[-1])
    return any(torch.equal(now[n], theirs[n]) and not torch.equal(now[n], last[n]) for n in last)


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


def _way(trace: Trace, how: Thoroughness, before: Weights, after: Weights) -> Way:
    """Return how far an interval leads a model."""
    real = trace.model_in(after)
    start = nothing(real) if trace.gradient else {name: before[name] for name in real}
    if not any(tensor.numel() for tensor in real.values()):
        return Way(length=0.0, looped=len(trace.settings) > 0)
    largest = torch.stack([tensor.abs().max() for tensor in real.values() if tensor.numel()]).max()
    unit = torch.nextafter(largest, torch.full_like(largest, math.inf)) - largest
    return Way(
        length=distance(how.distance, start, real),
        unit=float(unit),
        looped=len(trace.settings) > 0,
    )


def nothing(like: Weights) -> Weights:
    """Return zeros in the form of weights: a gradient that is none."""
    return {name: torch.zeros_like(tensor) for name, tensor in like.items()}


def check_progress(work: Work) -> None:
    """Refuse a proof whose intervals are mostly too short to tell work from none, or lean one way.

    Verifiers that are not strict have counted neither.
    """
    if 2 * work.still > work.looked:
        reason = f"{work.still} of {work.looked} intervals are no longer than the error that is allowed"
        raise Rejected("progress", f"{reason}: who did nothing would pass")
    if problem := work.leaning.problem():
        raise Rejected("drift", problem)
