"""A client that looks at the weights it is sent, and does not answer those that no training leads to.

Paper: detection of active gradient leakage (arXiv 2511.10502); the attacks it is for are in
    attacks/privacy/crafted.

Looked at: rows, or columns, of a layer that are parallel; biases that are large beside their rows; units
that nothing reaches; a jump from what this client was sent the last time. Limits were calibrated on
honest trainings (benchmarks/detectors.py honest): the largest sign of 100 rounds stays below them with room
for the 1 % of false alarms that docs/crafted.md states. attack=quiet knows them, and stays below.
"""

import torch
from torch import Tensor, nn

from fedsim.core.errors import Refused
from fedsim.core.interfaces import Defense
from fedsim.core.randomness import generator
from fedsim.core.settings import number
from fedsim.core.types import Weights

PARALLEL = 0.999  # cosine
LOOKED_AT = 128  # rows of a layer, against all others
FEWEST = 8  # rows, and numbers in a row, from which on parallel ones are no chance


class InspectWeights(Defense):
    """Refuses weights with parallel rows, large biases, or a jump since the last round."""

    inspects = True
    looks_back = True

    def __init__(self, *, parallel: float = 0.1, bias: float = 2.0, jump: float = 1.0) -> None:
        """Set limits: share of parallel rows, bias beside the length of its row, relative change."""
        self.limits = {
            "parallel": number("defense.inspect_weights.parallel", parallel, above=0),
            "bias": number("defense.inspect_weights.bias", bias, above=0),
            "jump": number("defense.inspect_weights.jump", jump, above=0),
        }

    def on_sent(self, sent: Weights, before: Weights | None, model: nn.Module) -> None:
        """Refuse what is above a limit."""
        words = {
            "parallel": "share of rows or columns that are parallel to another",
            "bias": "size of a bias beside its row",
            "jump": "relative change since this client was sent the tensor before",
        }
        for name, (value, where) in weight_signs(sent, before).items():
            if not value <= self.limits[name]:  # what is no number, too
                raise Refused(
                    f"inspect_weights: {words[name]} of {where!r}: expected at most {self.limits[name]:.3g}, "
                    f"got {value:.3g}"
                )


def weight_signs(sent: Weights, before: Weights | None) -> dict[str, tuple[float, str]]:
    """Return the largest sign of each kind, and the tensor that shows it."""
    found = {"parallel": (0.0, ""), "bias": (0.0, ""), "jump": (0.0, "")}

    def note(kind: str, value: float, where: str) -> None:
        if not value <= found[kind][0]:
            found[kind] = value, where

    for name, tensor in sent.items():
        if tensor.ndim < 2 or not tensor.is_floating_point():
            continue
        rows = tensor.detach().flatten(1).float()
        note("parallel", max(_parallel(rows), _parallel(rows.T) if tensor.ndim == 2 else 0.0), name)
        bias = sent.get(name.removesuffix("weight") + "bias")
        if bias is not None and bias.shape == rows.shape[:1]:
            sizes = bias.detach().float().abs() / rows.norm(dim=1).clamp(min=1e-12)
            note("bias", float(sizes.max()), name)
        if before is not None and name in before:
            change = (tensor - before[name]).float().norm() / before[name].float().norm().clamp(min=1e-12)
            note("jump", float(change), name)
    return found


def _parallel(rows: Tensor) -> float:
    """Return the share of rows that are parallel to another row."""
    if min(rows.shape) < FEWEST:
        return 0.0
    rows = nn.functional.normalize(rows, dim=1)
    some = torch.randperm(len(rows), generator=generator(0, "rows looked at"))[:LOOKED_AT]
    cosines = (rows[some] @ rows.T).abs()
    cosines[torch.arange(len(some)), some] = 0
    return float((cosines.amax(dim=1) > PARALLEL).float().mean())
