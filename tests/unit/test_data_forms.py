"""The rules of data sets: a choice in every group of a table, the bytes of a text."""

import torch

from fedsim.data.adult import ROW
from fedsim.data.form import Form
from fedsim.data.tabular import tabular
from fedsim.data.text import text


def test_rows_of_a_table_have_one_choice_in_every_group() -> None:
    data = tabular(train_size=40, test_size=8)
    rows = data.train.batch(torch.arange(40))
    assert data.form.problem(rows) is None
    assert len(data.form.one_hot) == 8
    assert sum(end - first for first, end in ROW.groups) == 108 - 6
    first, end = data.form.one_hot[0]
    chosen = int(rows[3, 0, 0, first:end].argmax()) + first
    for change in ({chosen: 0.0}, {chosen: 254 / 255}, {end - 1 if chosen < end - 1 else first: 1.0}):
        wrong = rows.clone()
        for place, value in change.items():
            wrong[3, 0, 0, place] = value
        assert f"one choice among pixels {first} to {end - 1}" in (data.form.problem(wrong) or "")
    other = rows.clone()
    other[:, 0, 0, 0] = 7 / 255  # a number may be any level
    assert data.form.problem(other) is None


def test_texts_are_made_of_their_vocabulary() -> None:
    data = text(length=12, train_size=20, test_size=4)
    texts = data.train.batch(torch.arange(20))
    assert data.form.problem(texts) is None
    texts[0, 0, 0, 0] = 200 / 255
    assert "vocabulary" in (data.form.problem(texts) or "")
    assert Form().problem(texts) is None
