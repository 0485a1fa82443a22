import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord
from hypothesis import given
from hypothesis import strategies as st

from fedsim.core.errors import FedsimError
from fedsim.flower.records import DecodeOnce, decode, encode


@given(st.lists(st.integers(0, 5), min_size=0, max_size=4), st.sampled_from([torch.float32, torch.float64]))
def test_what_is_encoded_is_what_flower_writes_and_reads(shape: list[int], dtype: torch.dtype) -> None:
    tensor = torch.randn(shape, dtype=dtype)
    record = encode({"w": tensor})
    assert record["w"].data == Array(tensor.numpy()).data
    assert np.array_equal(record["w"].numpy(), tensor.numpy())
    assert torch.equal(decode(record)["w"], tensor)


def test_arrays_with_another_layout_go_through_flowers_reader() -> None:
    values = np.asfortranarray(np.random.default_rng(0).normal(size=(3, 4)))
    assert np.array_equal(decode(ArrayRecord({"w": Array(values)}))["w"].numpy(), values)


def npy(header: bytes) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header


HUGE = npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (10000000000000,), }")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"garbage",
        b"\x93NUMPY\x01\x00",
        b"PK\x03\x04 and more",
        HUGE,
        npy(b"(" * 9000),
        b"\x93NUMPY\x09\x00",
    ],
)
def test_bytes_that_are_no_array_are_named(content: bytes) -> None:
    broken = ArrayRecord({"w": Array("float32", (2,), "numpy.ndarray", content)})
    with pytest.raises(FedsimError, match="'w' cannot be decoded"):
        decode(broken)


def test_a_truncated_array_is_an_error() -> None:
    whole = encode({"w": torch.ones(5)})["w"]
    cut = Array(whole.dtype, whole.shape, whole.stype, whole.data[:-3])
    with pytest.raises(FedsimError, match="'w' cannot be decoded"):
        decode(ArrayRecord({"w": cut}))


def test_decode_once_decodes_a_record_once_and_another_anew() -> None:
    once, first, second = DecodeOnce(), encode({"w": torch.ones(2)}), encode({"w": torch.zeros(2)})
    assert once(first) is once(first)
    assert torch.equal(once(second)["w"], torch.zeros(2))
