"""Finite replies that would ruin a federation: found before they count, so that no innocent is blamed."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedsim.core.errors import FedsimError
from fedsim.core.training import batch_gradient, load_weights
from fedsim.core.types import Weights
from fedsim.data.images import Images

UNUSUAL = 100.0  # times the first model's weights and an honest gradient: looked at twice
PROBED = 8  # test images, to see what a large reply would do

Probe = Callable[[Weights], Weights]  # the gradient of an honest client on a model with these weights


def largest_entry(tensors: Weights | Tensor) -> float:
    """Return the largest size of an entry; NaN if one is NaN."""
    if not isinstance(tensors, Tensor):
        sizes = [largest_entry(tensor) for tensor in tensors.values()]
        return math.nan if any(map(math.isnan, sizes)) else max(sizes, default=0.0)
    if not tensors.numel():
        return 0.0
    low, high = torch.aminmax(tensors.detach())
    return max(-float(low), float(high))


def honest_gradient(model: nn.Module, images: Images, weights: Weights) -> Weights:
    """Return what an honest client would answer to these weights, by some test images."""
    some = torch.arange(min(PROBED, len(images.labels)))
    load_weights(model, weights)
    return batch_gradient(model, images.batch(some), images.labels[some])[0]


@dataclass
class Guard:
    """Knows how large the numbers of a federation are, and whose were the largest."""

    probe: Probe | None  # None: the server chose weights that may make replies large
    first: float  # the largest weight of the first model
    culprit: tuple[float, int, int] = (0.0, 0, 0)  # how large the largest reply was, its round and client
    _sent: Weights = field(default_factory=dict)
    _honest: float | None = None  # the largest entry of an honest gradient on what was sent

    def begin(self, sent: Weights) -> None:
        """Look at a model before it is sent; one without finite gradients for honest clients ends the run."""
        self._sent, self._honest, largest = sent, None, largest_entry(sent)
        drifted = self.probe is not None and largest > UNUSUAL * (1 + self.first)
        if drifted and not math.isfinite(self._honest_size()):
            size, round, client = self.culprit
            raise FedsimError(
                f"the global model, with weights up to {largest:.3g}, gives no finite gradient any more. The "
                f"largest reply so far, {size:.3g}, was client {client}'s in round {round}. Remedy: leave "
                "that client out, or lower the learning rates."
            )

    def check(self, received: Weights, round: int, client: int, *, share: float, step: float) -> None:
        """Refuse a reply that would overflow the mean, or leave a model that ruins honest replies.

        share: the reply's weight, times how many replies there are. step: what the server multiplies it with.
        """
        for name, tensor in received.items():
            most = torch.finfo(tensor.dtype).max / (4 * share)
            if not (size := largest_entry(tensor)) <= most:
                raise FedsimError(
                    f"tensor {name!r} holds {size:.3g}, expected at most {most:.3g}: with more it would "
                    "overflow the mean of the replies"
                )
        largest, usual = largest_entry(received), 1 + self.first
        if self.probe is not None and largest > UNUSUAL * usual:
            usual = max(usual, self._honest_size())
        if self.probe is not None and largest > UNUSUAL * usual:
            taken = {name: sent.add(received[name], alpha=step) for name, sent in self._sent.items()}
            sizes = {"weights": largest_entry(taken), "gradients": largest_entry(self.probe(taken))}
            for what, found in sizes.items():
                if not found <= UNUSUAL * usual:
                    raise FedsimError(
                        f"it holds {largest:.3g} and wrecks the model: with it, {what} of honest clients "
                        f"would reach {found:.3g}, expected at most {UNUSUAL * usual:.3g}"
                    )
        self.culprit = max(self.culprit, (largest, round, client))

    def _honest_size(self) -> float:
        if self._honest is None and self.probe is not None:
            self._honest = largest_entry(self.probe(self._sent))
        return math.inf if self._honest is None or math.isnan(self._honest) else self._honest
