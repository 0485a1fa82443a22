"""How many bytes a reply takes, encoded as its defenses allow: dense, as places, or with a bitmap."""

import math

from fedsim.core.types import Weights

FLOAT = 32.0  # bits of a number that nothing shortens
SCALE = 32  # bits of the one number that a quantised tensor is scaled by


def dense_bytes(reply: Weights) -> int:
    """Return the bytes of a reply as it is in memory."""
    return sum(tensor.numel() * tensor.element_size() for tensor in reply.values())


def wire_bytes(reply: Weights, bits: float = FLOAT, *, sparse: bool = True) -> int:
    """Return the bytes of a reply whose numbers take so many bits each; sparse: zeros left out if it pays."""
    total = 0.0
    for tensor in reply.values():
        size, kept = tensor.numel(), int(tensor.count_nonzero())
        place = max(1, math.ceil(math.log2(max(2, size))))
        best = min(size * bits, kept * (bits + place), size + kept * bits) if sparse else size * bits
        total += best + (SCALE if bits < 16 else 0)
    return math.ceil(total / 8)
