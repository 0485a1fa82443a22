"""Forging games on texts and tables: what counts as data there, and what honest recomputation comes to."""

from pathlib import Path

import pytest
import torch

from fedsim.attacks.integrity.forging.greedy import Greedy
from fedsim.attacks.integrity.forging.nearest import Nearest
from fedsim.attacks.integrity.forging.one_level import OneLevel
from fedsim.core.inputs import Choice, Number, Row, Tokens
from fedsim.core.training import Batch, exact_levels, step_gradient
from fedsim.core.types import Task
from fedsim.data.csv import csv
from fedsim.data.texts import text_data
from fedsim.defenses.integrity.proof.domain import batch_problem, domain_of
from fedsim.defenses.integrity.proof.reproduction import variations
from fedsim.integrity.trial import judged, trial
from fedsim.models.text_decoder import text_decoder

FORM = Tokens(vocabulary=tuple("_abcdef."), length=5, end=7, continued=True)
NEXT = Task(input_shape=(5,), num_classes=8, inputs=FORM)
KIND = Task(input_shape=(5,), num_classes=2, inputs=Tokens(vocabulary=FORM.vocabulary, length=5, end=7))
TEXT, FOLLOWS = [[1, 2, 3, 0, 0], [4, 5, 6, 1, 2]], [[2, 3, 7, -100, -100], [5, 6, 1, 2, 3]]


def texts(goal: str):
    """Short made-up lines, of different lengths."""
    lines = [" ".join("abcdef"[digit] for digit in (n % 6, n // 6)) + " ace" * (n % 4) for n in range(36)]
    labels = [n % 2 for n in range(36)]
    return text_data(lines, labels, classes=2, length=8, vocabulary=40, goal=goal, test=6, source="made up")


def decoder(task: Task):
    return text_decoder(task, depth=1, width=12, heads=2)


def of(tokens: list[list[int]], labels: list) -> Batch:
    return Batch(images=torch.tensor(tokens), labels=torch.tensor(labels))


@pytest.mark.parametrize(
    ("tokens", "labels", "words"),
    [
        (TEXT, FOLLOWS, ""),
        ([[1, 2, 8, 0, 0], TEXT[1]], FOLLOWS, "from 0 to 7"),
        ([[1, 0, 3, 0, 0], TEXT[1]], FOLLOWS, "padding behind a text alone"),
        # A causal model does not read what stands behind the last label: any words would fit there.
        ([[1, 2, 3, 5, 5], TEXT[1]], FOLLOWS, "labels that are the next tokens"),
        (TEXT, [[2, 4, 7, -100, -100], FOLLOWS[1]], "labels that are the next tokens"),
        (TEXT, [[2, 3, 7, 1, -100], FOLLOWS[1]], "labels that are the next tokens"),
        (TEXT, [[2, 3, -100, -100, -100], FOLLOWS[1]], "labels that are the next tokens"),
        (TEXT, [2, 3], "a next token for every token"),
    ],
)
def test_texts_are_pieces_of_the_vocabulary_with_the_labels_that_they_have(tokens, labels, words) -> None:
    batch = of(tokens, labels)
    problem = batch_problem(batch, 2, NEXT, "uint8")
    assert words in problem if words else problem is None
    assert domain_of(batch, 2, NEXT) == ("none" if words else "tokens")


def test_texts_to_classify_have_one_class_each() -> None:
    assert batch_problem(of(TEXT, [0, 1]), 2, KIND, "uint8") is None
    assert "labels from 0 to 1" in batch_problem(of(TEXT, [0, 2]), 2, KIND, "uint8")
    pixels = Batch(images=torch.zeros(2, 5), labels=torch.tensor([0, 1]))
    assert "expected tokens (2, 5) of int64" in batch_problem(pixels, 2, KIND, "real")


def test_every_text_and_row_of_a_data_set_is_data(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    lines = [f"{17 + n},{n / 7:.3f},{'ab'[n % 2]},{'xy'[n % 3 % 2]}" for n in range(40)]
    table.write_text("\n".join(["age,pay,town,kind", *lines]))
    for data in (texts("class"), texts("next"), csv(path=str(table))):
        chosen = torch.arange(len(data.train.labels))
        batch = Batch(images=data.train.batch(chosen), labels=data.train.labels[chosen])
        assert batch_problem(batch, len(chosen), data.task, "uint8") is None


def test_numbers_of_a_table_are_values_of_their_columns() -> None:
    columns = (Number("age", 17, 90, whole=True), Number("pay", 0, 1000), Choice("town", ("a", "b")))
    task = Task(input_shape=(1, 1, 4), num_classes=2, inputs=Row(columns=columns))
    row = torch.tensor([[columns[0].share(39), 0.1234567, 1.0, 0.0]])
    labels = torch.tensor([0])
    assert batch_problem(Batch(images=row.view(1, 1, 1, 4), labels=labels), 1, task, "uint8") is None
    for place, value in (
        (0, columns[0].share(39.5)),
        (2, 0.5),
        (1, 1.1),
    ):  # half a year, half a town, too much
        other = row.clone()
        other[0, place] = value
        assert batch_problem(Batch(images=other.view(1, 1, 1, 4), labels=labels), 1, task, "uint8")


def test_a_forged_text_is_told_from_honest_recomputation() -> None:
    asked = trial(texts("next"), decoder, 6)
    # Texts differ in length: quarters of a batch count by their tokens, or nothing would be far from honest.
    wanted = step_gradient(asked.model, asked.batch)[0]
    for way in variations(1):
        if way.exact:
            found = way.gradient_of(asked.model, asked.batch)
            assert all(torch.allclose(found[name], wanted[name], atol=1e-6) for name in wanted)
    assert judged(asked, Greedy(candidates=2).forge(asked)).check == "step"
    asked = trial(texts("class"), decoder, 6, unwanted=1)
    claimed = Nearest().forge(asked)
    assert claimed.labels.equal(asked.batch.labels)
    verdict = judged(asked, claimed)
    assert (verdict.accepted, verdict.domain) == (False, "tokens")
    assert verdict.near["l2"] is None  # no grey levels; what enters the last layer can be compared
    assert verdict.near["embedding"] is not None
    assert exact_levels(asked.batch.images) is asked.batch.images
    assert Nearest.tokens
    assert not OneLevel.tokens
