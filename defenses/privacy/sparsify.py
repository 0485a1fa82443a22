"""Only some entries of each layer leave the client.

Paper: Lin et al., Deep Gradient Compression (ICLR 2018); as a defense in Ma et al. (ICLR 2023), figure 5.
"""

import torch
from torch import Generator, Tensor

from fedsim.core.interfaces import Defense
from fedsim.core.settings import number, one_of, switch
from fedsim.core.types import Kind, KnownDefense, Observation, Weights

CHOICES = ("largest", "random")
SCOPES = ("tensor", "model")


class Sparsify(Defense):
    """Sets a share of `rate` of the entries to zero: the smallest by magnitude, or any."""

    sparse = True

    def __init__(
        self,
        *,
        rate: float = 0.4,
        keep: str = "largest",
        scope: str = "tensor",
        error_feedback: bool = False,
    ) -> None:
        """Set the share; keep: `largest` or `random` entries; scope: of each `tensor`, or of the `model`.

        error_feedback: what was left out is added to the client's next reply.
        """
        self.rate = number("defense.sparsify.rate", rate, least=0, below=1)
        self.keep = one_of("defense.sparsify.keep", keep, CHOICES)
        self.scope = one_of("defense.sparsify.scope", scope, SCOPES)
        self.keeps_rest = switch("defense.sparsify.error_feedback", error_feedback)
        self.repeatable = keep == "largest" and not error_feedback

    def known(self, observation: Observation) -> KnownDefense:
        """Zeros are entries that were left out."""
        return KnownDefense(zeros=True)

    def on_reply(self, reply: Weights, kind: Kind, generator: Generator) -> Weights:
        """Sparsify tensor by tensor, or all of them as one."""
        if self.scope == "tensor":
            return {name: self._thin(tensor, generator) for name, tensor in reply.items()}
        thinned = self._thin(torch.cat([tensor.flatten() for tensor in reply.values()]), generator)
        parts = torch.split(thinned, [tensor.numel() for tensor in reply.values()])
        return {name: part.view_as(reply[name]).clone() for name, part in zip(reply, parts, strict=True)}

    def _thin(self, tensor: Tensor, generator: Generator) -> Tensor:
        if self.keep == "largest":
            return sparsify(tensor, self.rate)
        places = torch.randperm(tensor.numel(), generator=generator)[: int(self.rate * tensor.numel())]
        return without(tensor, places)


def sparsify(tensor: Tensor, rate: float) -> Tensor:
    """Return the tensor with its floor(rate * n) smallest entries, by magnitude, set to zero."""
    dropped = int(rate * tensor.numel())
    if dropped == 0:
        return tensor
    return without(tensor, tensor.abs().flatten().topk(dropped, largest=False, sorted=False).indices)


def without(tensor: Tensor, places: Tensor) -> Tensor:
    """Return a copy with the entries at these flat places set to zero."""
    kept = tensor.flatten().clone()
    kept[places] = 0
    return kept.reshape(tensor.shape)
