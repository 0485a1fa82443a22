"""Sentences of encoders from the errors of the first attention."""

import pytest
import torch

import fedsim
from fedsim.attacks.privacy.text.attention import Attention, attention_of
from fedsim.attacks.privacy.text.companions import Errors, Goal, Pairs, _grown, errors_of, sentence_of
from fedsim.attacks.privacy.text.structure import entering
from fedsim.core.inputs import Tokens
from fedsim.data.images import Dataset


@pytest.fixture(scope="module")
def lines() -> Dataset:
    return fedsim.dataset("shakespeare_small")


def test_query_key_and_heads_are_found_by_what_a_shift_does(lines: Dataset) -> None:
    model = fedsim.model("text_encoder", task=lines.task, width=96, heads=3)
    group = ["blocks.0.value", "blocks.0.key", "blocks.0.query"]  # their order tells nothing
    found = attention_of(model, lines.task.inputs, group, "blocks.0.project")
    assert found == Attention(query="blocks.0.query", key="blocks.0.key", head=32)
    assert attention_of(model, lines.task.inputs, group[:2], "blocks.0.project") is None


def test_errors_of_a_token_are_those_that_came_back_to_it_alone() -> None:
    chance = torch.Generator().manual_seed(0)
    words, places = torch.randn(5, 40, generator=chance), torch.randn(3, 40, generator=chance)
    tokens, where = torch.arange(5).repeat_interleave(3), torch.arange(3).repeat(5)
    rows = (words[tokens] + places[where]).double()
    errors = torch.randn(15, 8, generator=chance).double()
    errors[9:12] *= torch.tensor([0, 1, 0])[:, None]  # token 3 stands at one place
    pairs = Pairs(tokens=tokens, places=where, rows=rows, atoms=torch.zeros(15, 2, 8).double())
    gradient = {f"{name}.weight": errors.T @ rows for name in ("q", "k")}
    shown = {
        found.token: found for found in errors_of(pairs, Attention(query="q", key="k", head=8), gradient)
    }
    assert {*shown} == {*range(5)}
    cosine = torch.cosine_similarity(shown[3].shares[0], errors[10], dim=0)
    assert float(cosine.abs()) == pytest.approx(1, abs=1e-9)
    assert float(shown[3].noise.max()) < 1e-6


def made_up(noise: float) -> tuple[Pairs, Errors]:
    """Return 20 words at each of 5 places, and errors that words 3, 5, 7 and the end explain."""
    chance = torch.Generator().manual_seed(1)
    tokens, places = torch.arange(1, 21).repeat(5), torch.arange(5).repeat_interleave(20)
    atoms = torch.randn(100, 6, 16, generator=chance).double()
    right = [2, 24, 46, 60]  # 3 at 0, 5 at 1, 7 at 2, 1 at 3: the end
    shares = torch.einsum("wh,whu->hu", torch.randn(4, 6, generator=chance).double(), atoms[right])
    shares = shares + noise * torch.randn(6, 16, generator=chance)
    pairs = Pairs(tokens=tokens, places=places, rows=torch.zeros(100, 1), atoms=atoms)
    return pairs, Errors(token=5, direction=torch.zeros(1), shares=shares, noise=torch.full((6,), noise))


@pytest.mark.parametrize("noise", [0.0, 1e-3, 0.05])
def test_words_that_explain_the_errors_stand_together(noise: float) -> None:
    pairs, errors = made_up(noise)
    numbers = sentence_of(pairs, errors, {}, 5, end=1)
    assert numbers is not None
    assert pairs.tokens[numbers].tolist() == [3, 5, 7, 1]


def test_errors_that_no_sentence_explains_tell_none() -> None:
    pairs, errors = made_up(0.0)
    other = torch.randn(6, 16, generator=torch.Generator().manual_seed(2)).double()
    assert (
        sentence_of(
            pairs, Errors(token=5, direction=torch.zeros(1), shares=other, noise=torch.zeros(6)), {}, 5, 1
        )
        is None
    )
    assert sentence_of(pairs, errors, {}, 5, end=20) is None  # a sentence without its end is none


@pytest.mark.parametrize(("number", "train_embeddings"), [(8, True), (3, False)])
def test_sentences_of_an_encoder_are_exact(lines: Dataset, number: int, train_embeddings: bool) -> None:
    torch.manual_seed(0)
    model = fedsim.model("text_encoder", task=lines.task, train_embeddings=train_embeddings)
    chosen = torch.arange(number) * 300
    texts, labels = lines.train.batch(chosen), lines.train.labels[chosen]
    seen = fedsim.observe(model, texts, labels, inputs=lines.task.inputs)
    guess = fedsim.attack("dager", seconds=1)(model, seen, inputs=lines.task.inputs)
    assert guess.tokens is not None
    assert {tuple(text) for text in guess.tokens.tolist()} == {tuple(text) for text in texts.tolist()}


def test_the_words_of_a_text_enter_the_first_attention_as_candidates_say(lines: Dataset) -> None:
    form = lines.task.inputs
    assert isinstance(form, Tokens)
    model = fedsim.model("text_encoder", task=lines.task, width=96, heads=3)
    text = lines.train.batch(torch.tensor([7]))
    alone = entering(model, "blocks.0.query", text[0][:, None].expand(-1, form.length))
    assert torch.allclose(entering(model, "blocks.0.query", text)[0], alone.diagonal(dim1=0, dim2=1).T)


def test_no_word_is_chosen_that_explains_nothing() -> None:
    pairs, errors = made_up(0.0)
    shares = torch.zeros(6, 16, dtype=torch.float64)
    shares[:, 0] = 1.0
    only = torch.zeros(100, 6, 16, dtype=torch.float64)
    only[:, :, 1] = 1.0
    only[7, :, 1], only[7, :, 0] = 0.0, 2.0
    alone = Pairs(tokens=pairs.tokens, places=pairs.places, rows=pairs.rows, atoms=only)
    goal = Goal.of([Errors(token=5, direction=errors.direction, shares=shares, noise=errors.noise)])
    assert _grown(alone, goal, 5, -1.0) == [7]
    shares[:, 0] = 2.0
    shares[:, 1] = 1.0  # a fifth of the squares, which all others explain
    goal = Goal.of([Errors(token=5, direction=errors.direction, shares=shares, noise=errors.noise)])
    whole = float((goal.shares.square().sum(dim=-1) * goal.weights).sum())
    assert _grown(alone, goal, 5, 0.5 * whole) == [7]
    assert _grown(alone, goal, 5, 0.1 * whole) == [7, 20]


def test_a_model_without_attention_is_refused_before_it_is_attacked(lines: Dataset) -> None:
    table = torch.nn.Embedding(len(lines.task.inputs.vocabulary), 4)
    with pytest.raises(fedsim.FedsimError, match="a transformer of tokens"):
        fedsim.attack("dager").check(torch.nn.Sequential(table, torch.nn.Linear(4, 4)), lines.task)
