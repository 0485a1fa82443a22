import pytest
import torch

from fedsim.core.types import Reconstruction, Truth
from fedsim.metrics.class_rows import cosine_score, example_cosine_score, match_rows
from fedsim.metrics.embedding_cosine import EmbeddingCosine
from fedsim.metrics.embedding_error import EmbeddingError
from fedsim.metrics.probability_cosine import ProbabilityCosine

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


def test_guessed_rows_are_matched_in_their_best_order() -> None:
    assert match_rows(ROWS.flip(0), ROWS).equal(ROWS)
    assert match_rows(ROWS[2:], ROWS).tolist() == [[0, 0], [0, 0], [0, 3]]


def test_errors_of_embeddings_and_cosines_of_probabilities_that_a_person_can_check() -> None:
    images = torch.zeros(3, 1, 1, 1)
    truth = Truth(round=1, client=0, images=images, labels=LABELS, embeddings=ROWS, probabilities=ROWS)
    half = Reconstruction(embeddings=ROWS.flip(0) / 2, embedding_layer="output")
    assert EmbeddingError().score(half, truth).value == pytest.approx(
        0.5, abs=0.2
    )  # the best order is another
    assert EmbeddingError().score(Reconstruction(embeddings=ROWS), truth) is None  # class-wise
    exact = Reconstruction(embeddings=torch.cat([ROWS.flip(0), ROWS[:1]]), embedding_layer="output")
    assert EmbeddingError().score(exact, truth).value == pytest.approx(0.25)  # one too many of four
    guessed = torch.tensor([[0.0, 1.0], [9.0, 9.0], [0.0, 0.1]])
    assert ProbabilityCosine().score(Reconstruction(probabilities=guessed), truth).value == pytest.approx(0.5)


def test_cosines_of_embeddings_are_by_class_or_by_example_as_the_guess_is() -> None:
    images = torch.zeros(3, 1, 1, 1)
    truth = Truth(round=1, client=0, images=images, labels=LABELS, embeddings=ROWS)
    by_class = Reconstruction(embeddings=torch.tensor([[5.0, 0.0], [9.0, 9.0], [1.0, 0.0]]))
    assert EmbeddingCosine().score(by_class, truth).value == pytest.approx(0.5)
    by_example = Reconstruction(embeddings=ROWS[:2], embedding_layer="output")
    assert EmbeddingCosine().score(by_example, truth).value == pytest.approx(2 / 3)
    blank = Truth(round=1, client=0, images=images, labels=LABELS)
    for guess in (by_class, by_example, Reconstruction(embedding_layer="output")):
        assert EmbeddingCosine().score(guess, blank) is None


def test_an_embedding_of_zeros_is_no_division_by_zero() -> None:
    truth = Truth(
        round=1, client=0, images=torch.zeros(3, 1, 1, 1), labels=LABELS, embeddings=torch.zeros(3, 2)
    )
    guess = Reconstruction(embeddings=torch.zeros(3, 2), embedding_layer="output")
    assert EmbeddingError().score(guess, truth).value == 0.0
