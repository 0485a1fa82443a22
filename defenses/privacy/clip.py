"""A bound on the length of what leaves the client."""

import torch
from torch import Generator

from fedsim.errors import FedsimError
from fedsim.interfaces import Defense
from fedsim.types import Kind, Weights


class Clip(Defense):
    """Scales the whole gradient or update down to an l2 norm of at most `max_norm`."""

    def __init__(self, *, max_norm: float = 1.0) -> None:
        if not max_norm > 0:
            raise FedsimError(f"defense.clip.max_norm: expected a positive number, got {max_norm}")
        self.max_norm = max_norm

    def on_reply(self, reply: Weights, kind: Kind, generator: Generator) -> Weights:
        """Clip over all tensors together."""
        norm = float(torch.stack([tensor.double().norm() for tensor in reply.values()]).norm())
        scale = min(1.0, self.max_norm / norm) if norm > 0 else 1.0
        return {name: tensor * scale for name, tensor in reply.items()}
