"""Weights as Flower arrays and back."""

from collections import OrderedDict

import torch
from flwr.app import ArrayRecord

from fedsim.errors import FedsimError
from fedsim.types import Weights


def encode(weights: Weights) -> ArrayRecord:
    """Turn weights into a Flower record."""
    return ArrayRecord(OrderedDict((name, tensor.contiguous()) for name, tensor in weights.items()))


def decode(record: ArrayRecord) -> dict[str, torch.Tensor]:
    """Turn a Flower record into weights; an unreadable array is an error that names it."""
    weights = {}
    for name, array in record.items():
        try:
            weights[name] = torch.from_numpy(array.numpy())
        except (ValueError, TypeError, OSError, EOFError) as error:
            raise FedsimError(f"tensor {name!r} cannot be decoded ({error})") from error
    return weights


class DecodeOnce:
    """Decodes a broadcast once for all clients that share a process and therefore the record."""

    def __init__(self) -> None:
        self._record: ArrayRecord | None = None
        self._weights: Weights = {}

    def __call__(self, record: ArrayRecord) -> Weights:
        """Return the record's weights, from memory when it is the record of the last call."""
        if record is not self._record:
            self._record, self._weights = record, decode(record)
        return self._weights
