"""Which intervals of a trace are done again, and what that leaves unseen."""

import math

import torch
from torch import Generator

from fedsim.core.training import Trace
from fedsim.core.types import Weights
from fedsim.defenses.integrity.proof.expected import Thoroughness


def chosen_places(trace: Trace, how: Thoroughness, challenge: Generator) -> list[int]:
    """Return the checkpoints to start from: of each epoch the largest updates, and others at random."""
    pairs = zip(trace.checkpoints, trace.checkpoints[1:], strict=False)
    sizes = [length_of_update(before, after) for before, after in pairs]
    chosen = list[int]()
    for epoch in _epochs(len(sizes), how, trace.every):
        places = sorted(epoch, key=lambda place: -sizes[place])
        rest = places[how.top :]
        order = torch.randperm(len(rest), generator=challenge)[: wanted_at_random(len(rest), how)].tolist()
        chosen += places[: how.top] + [rest[place] for place in order]
    return chosen


def unseen_chance(intervals: int, how: Thoroughness, every: int) -> float:
    """Return the chance that one false interval, which is not among the largest, is not done again."""
    left = [max(0, len(epoch) - how.top) for epoch in _epochs(intervals, how, every)]
    return max(1 - min(1.0, wanted_at_random(number, how) / number) if number else 0.0 for number in left)


def wanted_at_random(number: int, how: Thoroughness) -> int:
    """Return how many of so many intervals are done again: few enough to name, or as detection asks."""
    return how.random if how.random is not None else math.ceil(how.detection * number - 1e-9)


def _epochs(intervals: int, how: Thoroughness, every: int) -> list[range]:
    number = intervals if how.epoch is None else max(1, how.epoch // every)
    return [range(start, min(start + number, intervals)) for start in range(0, intervals, number)]


def length_of_update(before: Weights, after: Weights) -> float:
    """Return the l2 length of an update, in few calls: there is one for every interval."""
    real = [name for name, tensor in after.items() if tensor.is_floating_point()]
    gaps = torch._foreach_sub([after[name] for name in real], [before[name] for name in real])
    return float(torch.stack([norm.float() for norm in torch._foreach_norm(gaps)]).norm())
