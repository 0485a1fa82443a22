"""Some parameters stay as they are: what is not trained leaks nothing, such as the rows of an embedding."""

from collections.abc import Sequence

import torch
from torch import Generator

from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Defense, LocalStep
from fedsim.core.settings import listed, optional, word
from fedsim.core.types import Kind, KnownDefense, Observation, Weights


class Freeze(Defense):
    """Neither trains nor sends parameters whose names begin so: zeros stand in their place."""

    sparse = True

    def __init__(self, *, names: Sequence[str] | None = None) -> None:
        """Set the beginnings of names; None: the first layer's, where embeddings are."""
        optional(listed, "defense.freeze.names", names, "a list of beginnings of names", word)
        self.names = None if names is None else tuple(names)

    def on_gradient(self, gradient: Weights, step: LocalStep, generator: Generator) -> Weights:
        """Leave them where they are in a local step."""
        return self._without(gradient)

    def on_reply(self, reply: Weights, kind: Kind, generator: Generator) -> Weights:
        """Send zeros for them, whatever other defenses added."""
        return self._without(reply)

    def known(self, observation: Observation) -> KnownDefense:
        """Their zeros say nothing."""
        return KnownDefense(zeros=True)

    def _without(self, tensors: Weights) -> Weights:
        first = next(iter(tensors))
        begins = self.names or (first[: first.rfind(".") + 1] or first,)
        frozen = {name for name in tensors if name.startswith(begins)}
        if any(not any(name.startswith(begin) for name in frozen) for begin in begins):
            raise FedsimError(
                f"defense.freeze.names: expected beginnings of names of parameters, got {list(begins)}. "
                f"Remedy: some of {', '.join(list(tensors)[:8])}."
            )
        return {
            name: torch.zeros_like(tensor) if name in frozen else tensor for name, tensor in tensors.items()
        }
