"""A bound on the length of what leaves the client."""

import math

from torch import Generator

from fedsim.core.interfaces import Defense
from fedsim.core.settings import number, one_of
from fedsim.core.types import Kind, Weights

SCOPES = ("model", "tensor")


class Clip(Defense):
    """Scales the gradient or update down to an l2 norm of at most `max_norm`, as a whole or by tensor."""

    rescales = True
    repeatable = True

    def __init__(self, *, max_norm: float = 1.0, scope: str = "model") -> None:
        """Set the bound; scope: `model`, or `tensor` for each by itself."""
        self.max_norm = number("defense.clip.max_norm", max_norm, above=0)
        self.scope = one_of("defense.clip.scope", scope, SCOPES)
        self.longest = self.max_norm if self.scope == "model" else None

    def on_reply(self, reply: Weights, kind: Kind, generator: Generator) -> Weights:
        """Clip."""
        norms = {name: float(tensor.double().norm()) for name, tensor in reply.items()}
        if self.scope == "model":
            norms = dict.fromkeys(norms, math.hypot(*norms.values()))
        return {
            name: tensor * (min(1.0, self.max_norm / norms[name]) if norms[name] > 0 else 1.0)
            for name, tensor in reply.items()
        }
