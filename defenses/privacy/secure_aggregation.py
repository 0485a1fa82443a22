"""The server gets the sum over a round's clients and no reply of its own.

Paper: Bell et al., Secure Single-Server Aggregation with (Poly)Logarithmic Overhead (CCS 2020), SecAgg+;
    Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine Learning (CCS 2017).

protocol=sum plays the outcome: the sum is exact, and the server looks at nothing else. protocol=masks
plays the messages: keys, shares, masked replies and the shares that take masks off again cross Flower,
and clients may leave on the way (fedsim/core/masking.py). Both give the same mean, but for 3e-14 that
whole numbers round off. What it does not hide: the sum, figures that clients disclose, and weights that a
server made for one client alone.
"""

from fedsim.core.interfaces import Defense
from fedsim.core.settings import one_of, optional, whole


class SecureAggregation(Defense):
    """The server sees only the mean over a round's clients: an exact sum, or masks that cancel in it."""

    sums_replies = True

    def __init__(self, *, protocol: str = "sum", neighbours: int | None = None) -> None:
        """Set how the sum comes about, and with how many others a client shares masks."""
        self.masks = one_of("defense.secure_aggregation.protocol", protocol, ("sum", "masks")) == "masks"
        self.neighbours = optional(whole, "defense.secure_aggregation.neighbours", neighbours, 2)
