"""The server gets the sum over a round's clients and no reply of its own.

Paper: Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine Learning (CCS 2017).

The sum is exact and no masks are exchanged: the outcome of the protocol is played, not its messages.
SecAgg+ of Flower rounds the replies and speaks the older fit messages, which gradients do not fit in.
"""

from fedsim.core.interfaces import Defense


class SecureAggregation(Defense):
    """The server sees only the mean over a round's clients: an exact sum, without the protocol's masks."""

    sums_replies = True
