"""Checkpoints as raw bytes: the same named tensors again and again, read where somebody looks at one."""

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedsim.core.errors import FedsimError
from fedsim.core.lazily import Lazily
from fedsim.core.types import Weights

PIECE = 2**24  # bytes of checkpoints that are looked through at a time
TYPES = ("<f4", "<f2", "<f8", "<i8", "<i4", "<i2", "|i1", "|u1", "|b1")  # of tensors, as numpy writes them


class Malformed(FedsimError):
    """Bytes that are not a proof."""


class Field(NamedTuple):
    """A tensor of every checkpoint."""

    name: str
    shape: tuple[int, ...]
    type: np.dtype[Any]

    @property
    def size(self) -> int:
        """How many bytes it takes."""
        return math.prod(self.shape) * self.type.itemsize


def as_arrays(checkpoint: Weights, half: bool) -> dict[str, np.ndarray]:
    """Return the arrays that a checkpoint is written as; half: in float16."""
    found = {name: np.asarray(tensor.detach().cpu().numpy()) for name, tensor in checkpoint.items()}
    return {
        name: array.astype(np.float16) if half else array.astype(array.dtype.newbyteorder("<"), copy=False)
        for name, array in found.items()
    }


def as_checkpoints(
    content: memoryview, number: int, fields: Sequence[Field], half: bool
) -> Lazily[dict[str, Tensor]]:
    """Return the checkpoints in raw bytes of the right length; numbers that are not finite are Malformed."""
    row = sum(field.size for field in fields)
    _check_finite(content, number, fields, row)
    starts = np.cumsum([0, *(field.size for field in fields)]).tolist()

    def at(place: int) -> dict[str, Tensor]:
        with _unwarned():
            return {
                field.name: _tensor(_array(content, field, place * row + start), half).reshape(field.shape)
                for field, start in zip(fields, starts, strict=False)
            }

    return Lazily(number, at)


def _check_finite(content: memoryview, number: int, fields: Sequence[Field], row: int) -> None:
    if len({field.type for field in fields}) == 1:  # all in one, which is quick
        with _unwarned():
            values = _tensor(np.frombuffer(content, fields[0].type), half=False)
        finite = math.isfinite(values.sum()) or bool(torch.isfinite(values).all())  # the sum is quick
    else:
        finite = all(bool(np.isfinite(part).all()) for part in _real_parts(content, number, fields, row))
    if not finite:
        raise Malformed("a checkpoint holds NaN or an infinity")


def _real_parts(content: memoryview, number: int, fields: Sequence[Field], row: int) -> Iterator[np.ndarray]:
    """Yield what is real of all checkpoints, each tensor in few pieces: there may be many tiny ones."""
    table, start = np.frombuffer(content, np.uint8).reshape(number, row), 0
    for field in fields:
        if field.size and field.type.kind == "f":
            rows = max(1, PIECE // field.size)
            for first in range(0, number, rows):
                piece = table[first : first + rows, start : start + field.size]
                yield np.ascontiguousarray(piece).view(field.type)
        start += field.size


def _array(content: memoryview, field: Field, start: int) -> np.ndarray:
    if not field.size:
        return np.zeros(0, field.type)
    return np.frombuffer(content, field.type, math.prod(field.shape), start)


def _tensor(array: np.ndarray, half: bool) -> Tensor:
    array = array.astype(np.float32) if half else array
    return torch.from_numpy(array if array.flags.aligned else array.copy())


@contextmanager
def _unwarned() -> Iterator[None]:
    """Silence that the bytes are read-only: nobody writes into a checkpoint."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
