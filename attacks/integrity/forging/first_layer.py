"""The linear first layer of a model: what pixels add to its units, and the errors that come back to them."""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsim.core.errors import FedsimError
from fedsim.core.training import Batch, exact_levels

RANK = 1e-12  # of the largest singular value, in float64


@dataclass(frozen=True, kw_only=True, eq=False)
class FirstLayer:
    """In float64: pixels X (pixels, batch) give units W X + c; the gradient of W is (errors^T X^T) / batch.

    Whatever leaves W X and X errors as they were leaves the whole gradient as it was (Suliman et al.,
    equation 12).
    """

    weight: Tensor  # W: (units, pixels), with the normalisation of pixels in it
    errors: Tensor  # D: (batch, units)
    only: bool  # its units are the logits, whose common shift softmax does not see

    @property
    def free_weight(self) -> Tensor:
        """W without what softmax does not see."""
        return self.weight - self.weight.mean(dim=0) if self.only else self.weight


def first_layer(model: nn.Module, batch: Batch) -> FirstLayer:
    """Read a model's first layer on a batch; refuse models where pixels do not enter a linear layer."""
    exact = copy.deepcopy(model).double()
    linear = [module for module in exact.modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise _not_connected()
    seen, units = list[Tensor](), list[Tensor]()

    def keep(_: nn.Module, inputs: tuple[Tensor, ...], outputs: Tensor) -> None:
        seen.append(inputs[0].detach())
        units.append(outputs)

    hook = linear[0].register_forward_hook(keep)
    shape = batch.images.shape[1:]
    mixture = torch.linspace(0, 1, shape.numel()).view(shape)
    probe = torch.stack([torch.zeros(shape), torch.ones(shape), mixture]).double()
    with torch.no_grad():
        exact(probe)
    black, white, mixed = seen[-1]
    scale = white - black  # pixels enter one by one: x -> black + scale x
    if black.numel() != probe[0].numel() or not torch.allclose(mixed, black + scale * probe[2].flatten()):
        raise _not_connected()
    logits = exact(exact_levels(batch.images))
    hook.remove()
    labels = batch.labels if batch.labels.dtype == torch.int64 else batch.labels.double()
    loss = functional.cross_entropy(logits, labels, reduction="sum")
    (errors,) = torch.autograd.grad(loss, units[-1])
    return FirstLayer(
        weight=linear[0].weight.detach() * scale, errors=errors, only=len(linear) == 1 and logits is units[-1]
    )


def basis(columns: Tensor) -> Tensor:
    """Return an orthonormal basis of the span of columns."""
    left, sizes, _ = torch.linalg.svd(columns, full_matrices=False)
    found: Tensor = left[:, sizes > RANK * max(float(sizes.max()), 1e-300)]
    return found


def _not_connected() -> FedsimError:
    return FedsimError(
        "forgery: expected a model whose pixels enter a linear layer one by one (softmax, mlp, fcn3). "
        "Remedy: such a model, or forgery=[invisible] for convolutions."
    )
