import pytest
import torch

from fedsim.core.errors import FedsimError
from fedsim.core.types import Observation, Reconstruction, Task, Truth, reply_problem

SENT = {"w": torch.zeros(2, 3), "b": torch.zeros(2)}


def test_a_well_formed_reply_has_no_problem() -> None:
    assert reply_problem({"w": torch.ones(2, 3), "b": torch.ones(2)}, SENT) is None


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        ({"w": torch.ones(2, 3)}, "missing tensor 'b'"),
        (SENT | {"c": torch.ones(1)}, "unknown tensor 'c'"),
        (SENT | {"b": torch.ones(3)}, r"expected shape \(2,\), got \(3,\)"),
        (SENT | {"b": torch.tensor([0.0, float("nan")])}, "'b' holds NaN"),
        (SENT | {"b": torch.tensor([0.0, float("inf")])}, "'b' holds an infinity"),
        (SENT | {"b": torch.tensor([float("-inf"), float("inf")])}, "'b' holds an infinity"),
        (SENT | {"b": torch.ones(2, dtype=torch.int64)}, "expected torch.float32, got torch.int64"),
    ],
)
def test_a_malformed_reply_is_described_and_never_becomes_an_observation(reply, words: str) -> None:
    with pytest.raises(FedsimError, match=words):
        Observation(round=1, client=0, sent=SENT, received=reply, kind="gradient")


def test_large_finite_values_whose_sum_overflows_are_no_fault() -> None:
    huge = {"w": torch.full((2, 3), 3e38), "b": torch.zeros(2)}
    assert reply_problem(huge, SENT) is None


def test_values_check_themselves() -> None:
    for make in (
        lambda: Task(input_shape=(3, 0, 4), num_classes=3),
        lambda: Task(input_shape=(3, 4, 4), num_classes=1),
        lambda: Task(input_shape=(3, 4, 4), num_classes=2, mean=(0.1, 0.2)),
        lambda: Task(input_shape=(3, 4, 4), num_classes=2, std=(0.0,)),
        lambda: Observation(round=1, client=0, sent=SENT, received=SENT, kind="weights"),  # type: ignore[arg-type]
        lambda: Reconstruction(images=torch.zeros(3, 4)),
        lambda: Reconstruction(class_counts=torch.zeros(3)),
        lambda: Reconstruction(class_presence=torch.zeros(3)),
        lambda: Truth(round=1, client=0, images=torch.zeros(2, 1, 4, 4), labels=torch.zeros(3)),
    ):
        with pytest.raises(FedsimError, match="expected"):
            make()
