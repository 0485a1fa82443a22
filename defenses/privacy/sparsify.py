"""Only the large entries of each layer leave the client.

Paper: Lin et al., Deep Gradient Compression (ICLR 2018); as a defence in Ma et al. (ICLR 2023), figure 5.
"""

from torch import Generator, Tensor

from fedsim.errors import FedsimError
from fedsim.interfaces import Defense
from fedsim.types import Kind, Weights


class Sparsify(Defense):
    """Sets the smallest entries of every tensor to zero: a share of `rate`, by magnitude."""

    def __init__(self, *, rate: float = 0.4) -> None:
        if not 0 <= rate < 1:
            raise FedsimError(f"defense.sparsify.rate: expected a share in [0, 1), got {rate}")
        self.rate = rate

    def on_reply(self, reply: Weights, kind: Kind, generator: Generator) -> Weights:
        """Sparsify tensor by tensor."""
        return {name: sparsify(tensor, self.rate) for name, tensor in reply.items()}


def sparsify(tensor: Tensor, rate: float) -> Tensor:
    """Return the tensor with its floor(rate * n) smallest entries, by magnitude, set to zero."""
    dropped = int(rate * tensor.numel())
    if dropped == 0:
        return tensor
    smallest = tensor.abs().flatten().topk(dropped, largest=False, sorted=False).indices
    kept = tensor.flatten().clone()
    kept[smallest] = 0
    return kept.reshape(tensor.shape)
