"""What a guess's gradient is compared with: the tensors that came back, or those of some layers."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedsim.core.errors import FedsimError
from fedsim.core.types import Observation


def compared(
    observation: Observation, own: nn.Module, layers: Sequence[str] | None, behind: Sequence[bool] = ()
) -> tuple[tuple[Tensor, ...], tuple[bool, ...]]:
    """Return the gradients to match, as the attack's own model computes, and which parameters they are of.

    behind: of each parameter, whether it acts on known features: those are matched, its gradient need not be.
    """
    names, sample = [name for name, _ in own.named_parameters()], next(own.parameters())
    used = tuple(layers is None or any(name.startswith(layer) for layer in layers) for name in names)
    if any(used) and any(behind):
        used = tuple(wanted and not told for wanted, told in zip(used, behind, strict=True))
    if not any(used):
        raise FedsimError(
            f"attack.layers: no parameter begins with any of {list(layers or ())}. "
            f"Remedy: some of {', '.join(names)}."
        )
    target = tuple(
        observation.received[name].to(sample) for name, is_used in zip(names, used, strict=True) if is_used
    )
    if not any(bool(tensor.any()) for tensor in target):
        raise FedsimError("the gradient to match is zero everywhere: it holds nothing to recover")
    length, floats = math.hypot(*(float(t.double().norm()) for t in target)), torch.finfo(sample.dtype)
    if not floats.tiny <= length**2 <= floats.max:
        raise FedsimError(
            f"the gradient to match has a length of {length:.3g}, whose square {sample.dtype} cannot hold. "
            "Remedy: attack.double=true."
        )
    return target, used
