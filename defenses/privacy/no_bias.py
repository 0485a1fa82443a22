"""The last layer's bias stays at home: most label restoration divides by its gradient."""

import torch
from torch import Generator

from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Defense
from fedsim.core.types import Kind, KnownDefense, Observation, Weights


class NoBias(Defense):
    """Keeps the last layer's bias gradient or update back: zeros are sent, and it is never trained."""

    sparse = True
    repeatable = True

    def on_reply(self, reply: Weights, kind: Kind, generator: Generator) -> Weights:
        """Send zeros for the last bias."""
        last = list(reply)[-1]
        if not last.endswith("bias"):
            raise FedsimError(
                f"defense.no_bias: expected a model whose last parameter is a bias, got {last!r}. "
                "Remedy: leave it out: there is no bias to keep back."
            )
        return {name: torch.zeros_like(tensor) if name == last else tensor for name, tensor in reply.items()}

    def known(self, observation: Observation) -> KnownDefense:
        """The bias gradient's zeros say nothing."""
        return KnownDefense(zeros=True)
