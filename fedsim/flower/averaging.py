"""The mean of a round's replies, and what a server sees that gets no more than that mean."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from torch import Tensor

from fedsim.core.types import ALL, Observation, Weights


@dataclass
class RunningMean:
    """A weighted sum of replies that grows by one reply at a time."""

    sum: dict[str, Tensor] = field(default_factory=dict)
    weight: float = 0.0

    def add(self, reply: Weights, weight: float, *, scaled: bool = False) -> None:
        """Add a reply with its weight; scaled: it was multiplied with it before."""
        self.weight += weight
        factor = 1 if scaled else weight
        for name, tensor in reply.items():
            if name in self.sum:
                self.sum[name].add_(tensor, alpha=factor)
            else:
                self.sum[name] = tensor * factor

    def mean(self) -> Weights:
        """Return the mean of what was added."""
        return {name: tensor / self.weight for name, tensor in self.sum.items()}


def sum_of(parts: Sequence[Observation], received: Weights, beside: int = 0) -> Observation:
    """Return what the server saw of a round whose replies came as their mean, weighted by examples.

    beside: bytes that all of them sent besides, such as keys of masks.
    """

    def disclosed(name: str) -> list[Any]:
        """Return what all of them disclosed, or nothing."""
        found = [getattr(part, name) for part in parts]
        return [] if None in found else found

    def shared(name: str) -> Any:
        found = set(disclosed(name))
        return found.pop() if len(found) == 1 else None

    return dataclasses.replace(
        parts[0],
        client=ALL,
        clients=tuple(part.client for part in parts),
        received=received,
        learning_rate=shared("learning_rate"),
        local_steps=shared("local_steps"),
        num_examples=sum(disclosed("num_examples")) or None,
        bytes=_mean_bytes(disclosed("bytes"), beside),  # of what one client sent
        loss=fmean(disclosed("loss")) if disclosed("loss") else None,
        class_counts=tuple(map(sum, zip(*disclosed("class_counts"), strict=True))) or None,
    )


def _mean_bytes(sizes: Sequence[int], beside: int) -> int | None:
    return (sum(sizes) + beside) // len(sizes) if sizes else None
