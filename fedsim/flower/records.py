"""Weights as Flower arrays and back.

Flower's arrays are .npy bytes. Writing and parsing their headers takes longer than copying a small
model's numbers, so headers are made once for each type and shape: an array whose header is the expected
one is read directly, any other goes through Flower's own reader.
"""

import functools
import io
import math

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message
from torch import Tensor

from fedsim.core.errors import FedsimError
from fedsim.core.types import Weights

NUMPY_BYTES = "numpy.ndarray"  # Flower's name for .npy content


def encode(weights: Weights) -> ArrayRecord:
    """Turn weights into a Flower record."""
    return ArrayRecord({name: _encode_tensor(tensor) for name, tensor in weights.items()})


def decode(record: ArrayRecord) -> dict[str, Tensor]:
    """Turn a Flower record into weights; an unreadable array is an error that names it."""
    weights = {}
    for name, array in record.items():
        try:
            weights[name] = torch.from_numpy(_decode_array(array))
        except Exception as error:  # somebody else's bytes: numpy's readers fail in many ways
            raise FedsimError(f"tensor {name!r} cannot be decoded ({error})") from error
    return weights


def arrays_of(message: Message, key: str = "arrays", *, strict: bool = True) -> ArrayRecord:
    """Return the weights' record of a message: the one of this name; not strict: or the only one."""
    record = message.content.get(key)  # the typed views of a content are built anew at each access
    if isinstance(record, ArrayRecord):
        return record
    if strict:
        raise FedsimError(f"an empty message: expected an ArrayRecord {key!r}, got none")
    records = message.content.array_records
    if len(records) != 1:
        raise FedsimError(f"expected one ArrayRecord, or one named {key!r}, got {sorted(records) or 'none'}")
    return next(iter(records.values()))


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


def _encode_tensor(tensor: Tensor) -> Array:
    values = tensor.detach().cpu().numpy()
    dtype, shape = str(values.dtype), tuple(values.shape)
    return Array(dtype, shape, NUMPY_BYTES, _npy_header(dtype, shape) + values.tobytes())


def _decode_array(array: Array) -> np.ndarray:
    if array.stype == NUMPY_BYTES and array.dtype in ("float32", "float64", "float16"):
        header, dtype = _npy_header(array.dtype, tuple(array.shape)), np.dtype(array.dtype)
        size = dtype.itemsize * int(np.prod(array.shape, dtype=np.int64))
        if len(array.data) == len(header) + size and array.data.startswith(header):
            values = np.frombuffer(array.data, dtype, offset=len(header))
            return values.reshape(array.shape).copy()  # the bytes are read-only, tensors are not
    _check_npy(array.data)
    return array.numpy()


def _check_npy(content: bytes) -> None:
    """Refuse bytes that are not one .npy array of the size that its header declares."""
    stream = io.BytesIO(content)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    version = np.lib.format.read_magic(stream)
    if version not in read:
        raise ValueError(f".npy version {version} is not known here")
    shape, _, dtype = read[version](stream)
    declared = dtype.itemsize * math.prod(shape)
    if dtype.hasobject or declared != len(content) - stream.tell():
        raise ValueError(f"{declared} bytes are declared, {len(content) - stream.tell()} are there")


@functools.lru_cache(maxsize=4096)
def _npy_header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Return the bytes that .npy puts before the numbers of a C-ordered array."""
    content = io.BytesIO()
    description = np.lib.format.dtype_to_descr(np.dtype(dtype))
    np.lib.format.write_array_header_1_0(
        content, {"descr": description, "fortran_order": False, "shape": shape}
    )
    return content.getvalue()
