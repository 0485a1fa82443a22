import pytest
import torch

from fedsim.metrics.class_rows import cosine_score, example_cosine_score

LABELS = torch.tensor([0, 2, 2])
ROWS = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 3.0]])


def test_only_classes_in_the_batch_are_scored_against_their_means() -> None:
    guessed = torch.tensor([[5.0, 0.0], [9.0, 9.0], [0.0, 0.1]])
    score = cosine_score("x", guessed, ROWS, LABELS)
    assert score.value == pytest.approx(1.0)
    assert cosine_score("x", guessed.flip(0), ROWS, LABELS).value == pytest.approx(0.0)


def test_what_is_missing_or_not_class_wise_is_not_scored() -> None:
    assert cosine_score("x", None, ROWS, LABELS) is None
    assert cosine_score("x", ROWS, None, LABELS) is None
    assert cosine_score("x", ROWS[:2], ROWS, LABELS) is None


def test_rows_beyond_the_batch_cost_and_a_row_counts_once() -> None:
    assert example_cosine_score("x", ROWS, ROWS).value == pytest.approx(1.0)
    assert example_cosine_score("x", torch.cat([ROWS, ROWS]), ROWS).value == pytest.approx(0.5)
    assert example_cosine_score("x", ROWS[:1], ROWS).value == pytest.approx(1 / 3)
