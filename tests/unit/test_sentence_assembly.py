"""Sentences put together on spans that are known: every place shows its token and the one before."""

import math
import time
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedsim.attacks.privacy.text import assembly
from fedsim.attacks.privacy.text.assembly import MOST, Puzzle, descended, grown
from fedsim.attacks.privacy.text.spans import LIKELY, Span, span_of
from fedsim.core.inputs import Tokens

SIZE = 12
DECODED = Tokens(vocabulary=tuple("_abcdefghijk"), length=4)
ENCODED = Tokens(vocabulary=tuple("_<>cdefghijk"), length=5, begin=1, end=2)
TEXTS = torch.tensor([[3, 5, 7, 9], [3, 6, 8, 0], [4, 11, 10, 0]])  # pairs are each a text's own
MARKED = torch.tensor([[1, 3, 5, 7, 2], [1, 4, 6, 2, 0], [1, 8, 9, 10, 2]])


def pairs(model: nn.Module, name: str, sequences: Tensor) -> Tensor:
    """Stand for a layer: a place sees itself with the token before it, as one of all pairs."""
    before = torch.cat([torch.zeros_like(sequences[:, :1]), sequences[:, :-1]], dim=1)
    return nn.functional.one_hot(before * SIZE + sequences, SIZE**2).float()


@pytest.fixture(autouse=True)
def _layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembly, "entering", pairs)


def puzzle(form: Tokens, texts: Tensor) -> Puzzle:
    shown = pairs(nn.Identity(), "", texts)[texts != form.padding].double()
    random = torch.Generator().manual_seed(0)
    errors = torch.randn(len(shown), 40, generator=random, dtype=torch.float64)
    check = ("layer", span_of(errors.T @ shown, len(shown)))
    candidates = [column[column != form.padding].unique() for column in texts.T]
    return Puzzle(
        model=nn.Identity(),
        form=form,
        candidates=candidates,
        settled=candidates,
        rough=check,
        sure=check,
        wanted=len(texts),
    )


def sorted_rows(texts: Tensor) -> list[list[int]]:
    return sorted(texts.tolist())


def test_a_text_fits_by_its_worst_place_and_padding_says_nothing() -> None:
    known = puzzle(DECODED, TEXTS)
    assert all(known.doubt(text) < 1 for text in TEXTS)
    assert known.doubt(torch.tensor([3, 5, 7, 10])) is None
    assert float(known.excess(TEXTS[1:2])[0, 3]) > LIKELY  # what stands on padding is nobody's
    wrong = torch.tensor([[3, 5, 7, 9], [3, 5, 7, 10], [3, 6, 5, 0], [9, 9, 9, 9]])  # 0, 1, 1 and 4 false
    shares = known.mismatch(wrong).tolist()
    assert shares == pytest.approx([0, math.sqrt(1 / 4), math.sqrt(1 / 3), 1], abs=1e-3)
    ends = known.fits(known.sure, wrong[:, :3])
    assert [bool(end <= LIKELY) for end in ends] == [True, True, False, False]
    assert known.fits(known.sure, wrong[:0]).shape == (0,)


def test_a_decoders_texts_are_grown_from_their_beginnings() -> None:
    texts, doubts = grown(puzzle(DECODED, TEXTS))
    assert sorted_rows(texts) == sorted_rows(TEXTS)
    assert float(doubts.max()) < 1


def test_of_more_texts_than_wanted_the_longest_and_surest_stay() -> None:
    known = puzzle(DECODED, TEXTS)
    (longest,), _ = grown(replace(known, wanted=1))
    assert longest.tolist() == TEXTS[0].tolist()
    texts = torch.tensor([[3, 0, 0], [3, 4, 0], [5, 4, 0], [6, 4, 6]])
    best, doubts = assembly._best(texts, torch.tensor([0.1, 0.9, 0.2, 3.0]), replace(known, wanted=3))
    assert best.tolist() == [[6, 4, 6], [5, 4, 0], [3, 4, 0]]
    assert doubts.tolist() == pytest.approx([3.0, 0.2, 0.9])


def test_no_more_prefixes_are_kept_than_a_few_for_each_text() -> None:
    everything = Span(
        basis=torch.eye(SIZE**2, dtype=torch.float64),
        sizes=torch.ones(SIZE**2, dtype=torch.float64),
        outside=torch.zeros(SIZE**2, 0, dtype=torch.float64),
        noise=1.0,
    )
    every = [torch.arange(1, SIZE)] * 4
    known = replace(
        puzzle(DECODED, TEXTS), candidates=every, rough=("", everything), sure=("", everything), wanted=2
    )
    seen = list[int]()

    def counting(model: nn.Module, name: str, sequences: Tensor) -> Tensor:
        seen.append(len(sequences))
        return pairs(model, name, sequences)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assembly, "entering", counting)
        texts, _ = grown(known)
    assert max(seen) == MOST * 2 * (SIZE - 1)
    assert texts.shape == (2, 4)


def test_an_encoders_texts_are_found_whole() -> None:
    random = torch.Generator().manual_seed(1)
    texts, doubts = descended(puzzle(ENCODED, MARKED), {}, random, time.perf_counter() + 60)
    assert sorted_rows(texts) == sorted_rows(MARKED)
    assert float(doubts.max()) < 1


def test_texts_that_are_known_are_kept_and_time_that_is_over_ends_the_search() -> None:
    known = {tuple(MARKED[0].tolist()): 0.5}
    texts, doubts = descended(puzzle(ENCODED, MARKED), known, torch.Generator(), time.perf_counter() - 1)
    assert texts.tolist() == MARKED[:1].tolist()
    assert doubts.tolist() == [0.5]
    none, _ = descended(puzzle(ENCODED, MARKED), {}, torch.Generator(), time.perf_counter() - 1)
    assert none.shape == (0, 5)


def test_a_descent_holds_on_to_a_token_that_nothing_explains() -> None:
    known = puzzle(ENCODED, MARKED)
    explained = [set(MARKED[:2, place].tolist()) for place in range(5)]
    for seed in range(5):
        random = torch.Generator().manual_seed(seed)
        found = assembly._options(known, [(3, 10)], explained, random)
        assert found is not None
        tokens = [own.tolist() for own, _ in found]
        assert (tokens[0], tokens[3], tokens[4]) == ([1], [10], [2])
        assert tokens[1:3] == [[3, 4, 8], [5, 6, 9]]  # no marks
        assert [first.tolist() for _, first in found][1:3] == [[8], [9]]  # what is not explained, first
    alone = [known.candidates[0], torch.tensor([1, 2]), *known.candidates[2:]]
    nothing = assembly._options(replace(known, candidates=alone), [(3, 10)], explained, torch.Generator())
    assert nothing is None  # no word may stand at place 1


def test_a_text_is_improved_place_by_place_or_all_at_once() -> None:
    known = puzzle(ENCODED, MARKED)
    places = list(enumerate(known.candidates))[1:4]
    start = torch.tensor([1, 3, 6, 10, 2])
    text, left = assembly._improved(known, start, float(known.mismatch(start[None])), places)
    assert float(known.mismatch(text[None])) == left < float(known.mismatch(start[None]))
    for place, tokens in places:  # no single change makes it better
        tried = torch.stack([text.index_fill(0, torch.tensor([place]), int(token)) for token in tokens])
        assert float(known.mismatch(tried).min()) >= left
    assert assembly._improved(known, start, 0.1, [])[0].tolist() == start.tolist()
