"""Tokens and rows as inputs: data, spans, metrics and what a report shows of them."""

from dataclasses import asdict
from pathlib import Path
from typing import Literal

import pytest
import torch

import fedsim
from fedsim.attacks.privacy.text import next_tokens
from fedsim.attacks.privacy.text.places import standing
from fedsim.attacks.privacy.text.rearranging import moved, unusual, usual_pairs
from fedsim.attacks.privacy.text.spans import CLEAR, LIKELY, span_of
from fedsim.config.compose import parsed
from fedsim.core.errors import FedsimError
from fedsim.core.inputs import Choice, Number, Row, Tokens, inputs_from
from fedsim.core.types import Reconstruction, Task, Truth
from fedsim.data.csv import csv
from fedsim.data.tapped import tapped_data
from fedsim.data.text_lines import text_lines
from fedsim.data.wordpieces import UNKNOWN, WordPieces, learn
from fedsim.flower.wiretap import keep_truth
from fedsim.report.sides import sides_of
from fedsim.storage.folder import Storage
from fedsim.storage.forms import read_inputs, write_inputs
from fedsim.testing import small_set

FORM = Tokens(vocabulary=("[PAD]", "<b>", "is", "##land", "[SEP]"), length=4, end=4)
ROW = Row(columns=(Number("age", 10, 20, whole=True), Choice("town", ("Bonn", "Ulm"))))


def test_a_text_is_shown_as_a_reader_would_write_it() -> None:
    assert FORM.text([1, 2, 3, 4]) == "<b> island"
    assert FORM.text([1, -1, 0, 0]) == "<b> …"


def test_word_pieces_join_what_occurs_most_and_cut_the_longest_first() -> None:
    pieces = learn(["low lower lowest"] * 5, 30)
    cut = WordPieces(pieces)
    assert [pieces[place] for place in cut.cut("lowest")] == ["lowest"]
    assert pieces[cut.cut("zebra")[0]] == UNKNOWN


@pytest.mark.parametrize("noise", [0.0, 1e-3])
def test_true_inputs_lie_in_a_span_and_others_do_not(noise: float) -> None:
    chance = torch.Generator().manual_seed(0)
    inputs, errors = torch.randn(12, 40, generator=chance), torch.randn(12, 90, generator=chance)
    gradient = errors.T @ inputs + noise * torch.randn(90, 40, generator=chance)
    span = span_of(gradient, 20)
    assert len(span.basis) == 12
    assert float(span.excess(inputs).max()) < LIKELY / 1.5
    assert float(span.excess(torch.randn(500, 40, generator=chance)).min()) > 10 * LIKELY
    assert span.clarity > 1000  # and where noise is as large as the inputs, what fits is no proof:
    assert span_of(gradient + torch.randn(90, 40, generator=chance), 20).clarity < CLEAR
    assert bool(span.holds(inputs).all())
    assert not bool(span_of(gradient, 20).holds(torch.randn(500, 40, generator=chance)).any())


def test_tokens_of_several_places_come_out_once_the_others_are_settled() -> None:
    chance = torch.Generator().manual_seed(1)
    inside = torch.randn(4, 3, 30, generator=chance, dtype=torch.float64)
    true = torch.tensor([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 1]], dtype=torch.bool)
    back = torch.randn(4, 3, 30, generator=chance, dtype=torch.float64)
    centred = inside - inside.mean(dim=2, keepdim=True)
    back -= (back * centred).sum(dim=2, keepdim=True) * centred / centred.square().sum(dim=2, keepdim=True)
    back *= true[..., None]
    may, must = standing(back.sum(dim=1), back.sum(dim=0), inside)
    assert torch.equal(may, true)
    assert torch.equal(must, true)


@pytest.mark.parametrize(("goal", "model"), [("next", "text_decoder"), ("class", "text_encoder")])
def test_dager_tells_whole_sentences_and_no_false_one(goal: str, model: str) -> None:
    lines = small_set("tokens")
    if goal == "next":
        from fedsim.data.texts import text_data

        words = [f"{'abc'[n % 3]} {'xyzuvw'[n % 6]} {'pqrst'[n % 5]} {'klmno'[n % 4]}" for n in range(40)]
        lines = text_data(
            words, [0] * 40, classes=1, length=6, vocabulary=40, goal=goal, test=10, source="a test"
        )
    network = fedsim.model(model, task=lines.task, width=96, heads=4)
    texts, labels = lines.train.batch(torch.arange(2)), lines.train.labels[:2]
    seen = fedsim.observe(network, texts, labels, inputs=lines.task.inputs)
    guess = fedsim.attack("dager")(network, seen, inputs=lines.task.inputs)
    scores = fedsim.score(
        guess, texts, labels, metrics=["exact_sentences", "rouge1"], inputs=lines.task.inputs
    )
    assert scores["exact_sentences"].value == scores["rouge1"].value == 1
    assert scores["exact_sentences"].baseline == 0


def test_bag_of_words_gives_up_on_frozen_embeddings() -> None:
    data = small_set("tokens")
    network = fedsim.model("text_encoder", task=data.task, width=32, train_embeddings=False)
    texts, labels = data.train.batch(torch.arange(2)), data.train.labels[:2]
    seen = fedsim.observe(network, texts, labels, inputs=data.task.inputs)
    assert not any("embed" in name for name in seen.received)
    with pytest.raises(FedsimError, match="frozen"):
        fedsim.attack("bag_of_words")(network, seen, inputs=data.task.inputs)


def test_differences_are_marked_in_texts_and_rows() -> None:
    true = Truth(
        round=1, client=0, images=torch.tensor([[1, 2, 4, 0]]), labels=torch.zeros(1).long(), inputs=FORM
    )
    sides = sides_of(FORM, Reconstruction(tokens=torch.tensor([[1, 3, 4, 0]])), true, "x")
    assert sides is not None
    assert [(cell.words, cell.right) for cell in sides.sides[0].guessed] == [(" <b>", True), ("land", False)]
    rows = torch.tensor([0.5, 0.0, 1.0]).view(1, 1, 1, 3)
    true = Truth(round=1, client=0, images=rows, labels=torch.zeros(1).long(), inputs=ROW)
    sides = sides_of(ROW, Reconstruction(images=torch.tensor([0.5, 0.9, 0.1]).view(1, 1, 1, 3)), true, "x")
    assert sides is not None
    assert [(cell.words, cell.right) for cell in sides.sides[0].guessed] == [("15", True), ("Bonn", False)]


def test_what_inputs_are_is_kept_in_the_run_folder(tmp_path: Path) -> None:
    for place, form in enumerate((FORM, ROW)):
        storage = Storage(tmp_path / str(place))
        write_inputs(storage, form)
        assert read_inputs(storage) == form
    assert read_inputs(Storage(tmp_path / "none")) is None


def test_names_beyond_ascii_want_quotes_and_errors_say_so() -> None:
    with pytest.raises(FedsimError, match=r"if the value is one text: \"data\.label='käufer'\""):
        parsed(["data=csv", "data.label=käufer"])
    assert len(parsed(["data=csv", "data.label='käufer'"])) == 2


def test_a_table_of_ones_own_is_guessed(tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    file.write_text(
        "age,town,rich\n" + "".join(f"{n},{'Ulm' if n % 3 else 'Bonn'},{n % 2}\n" for n in range(20))
    )
    data = csv(path=str(file))
    assert isinstance(data.task.inputs, Row)
    assert data.task.inputs.columns == (Number("age", 0, 19, whole=True), Choice("town", ("Bonn", "Ulm")))
    shown = data.task.inputs.cells(data.train.batch(torch.arange(16)))
    assert all(town == ("Ulm" if int(age) % 3 else "Bonn") for age, town in shown)
    with pytest.raises(FedsimError, match="one of age, town, rich, got 'poor'"):
        csv(path=str(file), label="poor")
    file.write_text("a,b\n1\n" * 9)
    with pytest.raises(FedsimError, match="line 2: expected 2 cells, got 1"):
        csv(path=str(file))


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_a_table_may_be_separated_otherwise_and_have_blank_lines(tmp_path: Path, separator: str) -> None:
    file = tmp_path / "mine.csv"
    file.write_text(
        "age,,rich\n\n  \n".replace(",", separator)
        + f"1{separator}a{separator}0\n" * 9
        + "2;b;1".replace(";", separator)
    )
    found = csv(path=str(file)).task.inputs
    assert isinstance(found, Row)
    assert [column.name for column in found.columns] == ["age", "column 2"]


def test_a_decimal_comma_goes_with_semicolons(tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    file.write_text("größe;ort;käufer\n" + "".join(f"{n},5;<b>Ulm;{n % 2}\n" for n in range(20)))
    found = csv(path=str(file)).task.inputs
    assert isinstance(found, Row)
    assert found.columns == (Number("größe", 0.5, 19.5), Choice("ort", ("<b>Ulm",)))


def test_missing_cells_are_named_and_can_be_left_out(tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    file.write_text("age,rich\n" + "".join(f"{'NA' if n == 4 else n},{n % 2}\n" for n in range(20)))
    with pytest.raises(FedsimError, match=r"'age': expected numbers, got 'NA' in row 5.*drop_missing=true"):
        csv(path=str(file))
    data = csv(path=str(file), drop_missing=True)
    assert isinstance(data.task.inputs, Row)
    assert data.task.inputs.columns == (Number("age", 0, 19, whole=True),)
    assert len(data.train.labels) + len(data.test.labels) == 19


def test_rows_without_a_line_of_names_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    file.write_text("1,1,0\n" * 20)
    with pytest.raises(FedsimError, match="got '1' twice"):
        csv(path=str(file))


def test_a_text_file_of_ones_own_is_read(tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_text("".join(f"line {n} of mine\n" for n in range(20)))
    data = text_lines(path=str(file), length=8)
    assert isinstance(data.task.inputs, Tokens)
    assert data.task.inputs.continued
    assert data.task.inputs.text(data.train.batch(torch.arange(1))[0].tolist()).startswith("line")
    with pytest.raises(FedsimError, match="vocabulary: expected a whole number of at least 8, got 3"):
        text_lines(path=str(file), vocabulary=3)
    with pytest.raises(FedsimError, match="at least 2 classes, got 1"):
        text_lines(path=str(file), goal="class")


def test_a_task_holds_its_shape_against_its_inputs() -> None:
    with pytest.raises(FedsimError, match=r"expected \(4,\), got \(3,\)"):
        Task(input_shape=(3,), num_classes=2, inputs=FORM)


@pytest.mark.parametrize("kind", ["gradient", "update"])
def test_next_tokens_are_counted_from_the_output_layer_alone(
    kind: Literal["gradient", "update"], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(next_tokens, "FEW", 0)  # by bounds, without a search
    data = small_set("continued")
    network = fedsim.model("text_decoder", task=data.task, width=64, heads=4)
    texts, labels = data.train.batch(torch.arange(3)), data.train.labels[:3]
    seen = fedsim.observe(
        network,
        texts,
        labels,
        inputs=data.task.inputs,
        kind=kind,
        learning_rate=0.1 if kind == "update" else None,
        disclose=["learning_rate", "local_steps"],
    )
    guess = fedsim.attack("next_tokens", seconds=5)(network, seen, inputs=data.task.inputs)
    true = labels[labels >= 0].bincount(minlength=data.task.num_classes)
    assert guess.class_counts is not None
    assert guess.count_bounds is not None
    assert torch.equal(guess.class_counts, true)
    assert bool((guess.count_bounds[0] <= true).all())


def test_next_tokens_wants_texts_to_be_continued() -> None:
    data = small_set("tokens")
    network = fedsim.model("text_encoder", task=data.task, width=32)
    with pytest.raises(FedsimError, match=r"Remedy: data\.goal=next"):
        fedsim.attack("next_tokens").check(network, data.task)


@pytest.mark.parametrize("form", [FORM, ROW])
def test_what_inputs_are_survives_plain_values(form: Tokens | Row) -> None:
    assert inputs_from(asdict(form)) == form
    told = {"input_shape": form.shape, "num_classes": 2, "mean": [0.0], "std": [1.0]}
    assert tapped_data(**told, inputs=asdict(form)).task.inputs == form


def test_tokens_are_kept_as_the_truth_behind_a_reply(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("kind: wiretap\n")
    with pytest.raises(FedsimError, match=r"int64 tokens \(N, length\)"):
        keep_truth(tmp_path, round=1, client=0, images=torch.tensor([[-1, 2]]), labels=torch.zeros(1))
    keep_truth(tmp_path, round=1, client=0, images=torch.tensor([[1, 2]]), labels=torch.zeros(1))
    assert any(tmp_path.rglob("*.safetensors"))


def test_one_direction_hides_neither_the_others_nor_a_faint_one() -> None:
    chance = torch.Generator().manual_seed(0)
    inputs, errors = torch.randn(12, 40, generator=chance), torch.randn(12, 90, generator=chance)
    rounding = 1e-6 * torch.randn(90, 40, generator=chance)
    loud, faint = torch.ones(12), torch.ones(12)
    loud[0], faint[0] = 1e5, 1e-4
    for sizes, noise in ((loud, rounding * 1e-1), (faint, rounding)):
        span = span_of((sizes[:, None] * errors).T @ inputs + noise, 20)
        assert len(span.basis) == 12
        assert float(span.excess(inputs).max()) < LIKELY


@pytest.mark.parametrize("rank", [4, 64])
def test_lora_shows_inputs_in_as_many_dimensions_as_its_rank(rank: int) -> None:
    data = small_set("continued")
    network = fedsim.model("text_decoder", task=data.task, width=96, heads=4, lora=rank)
    texts, labels = data.train.batch(torch.arange(2)), data.train.labels[:2]
    seen = fedsim.observe(network, texts, labels, inputs=data.task.inputs)
    shown = {name for name, tensor in seen.received.items() if bool(tensor.any())}
    assert shown == {f"blocks.{n}.{part}.up.weight" for n in (0, 1) for part in ("query", "value")}
    if rank == 4:
        with pytest.raises(FedsimError, match="every token lies in the span"):
            fedsim.attack("dager")(network, seen, inputs=data.task.inputs)
        return
    guess = fedsim.attack("dager")(network, seen, inputs=data.task.inputs)
    assert guess.tokens is not None
    assert {tuple(text) for text in guess.tokens.tolist()} == {tuple(text) for text in texts.tolist()}


def test_texts_of_later_local_steps_are_told_though_inputs_moved() -> None:
    data = small_set("continued")
    network = fedsim.model("text_decoder", task=data.task, width=96, heads=4)
    texts, labels = data.train.batch(torch.arange(4)), data.train.labels[:4]
    seen = fedsim.observe(
        network, texts, labels, inputs=data.task.inputs, kind="update", local_steps=2, learning_rate=1e-3
    )
    guess = fedsim.attack("dager")(network, seen, inputs=data.task.inputs)
    assert guess.tokens is not None
    assert {tuple(text) for text in guess.tokens.tolist()} == {tuple(text) for text in texts.tolist()}
    assert guess.certified is not None
    assert not bool(guess.certified.any())  # what drift explains is no proof


@pytest.mark.parametrize("attack", ["tag", "lamp"])
def test_matching_of_one_text_comes_near_and_says_no_more_than_it_may(attack: str) -> None:
    data = small_set("tokens")
    network = fedsim.model("text_encoder", task=data.task, width=32, depth=1)
    texts, labels = data.train.batch(torch.arange(1)), data.train.labels[:1]
    seen = fedsim.observe(network, texts, labels, inputs=data.task.inputs)
    settings = {"optimiser": {"iterations": 60 if attack == "tag" else 30}}
    given = {"public": {"data": data}, "phases": 2, "moves": 5} if attack == "lamp" else {}
    guess = fedsim.attack(attack, **settings, **given)(network, seen, inputs=data.task.inputs)
    scores = fedsim.score(guess, texts, labels, metrics=["rouge1"], inputs=data.task.inputs)
    assert scores["rouge1"].value > 0.6
    assert guess.certified is None
    assert guess.trace[-1] < guess.trace[0] / 2
    later = small_set("continued")
    other = fedsim.model("text_decoder", task=later.task, width=32, heads=4)
    with pytest.raises(FedsimError, match=r"Remedy: data\.goal=class"):
        fedsim.attack(attack, **given).check(other, later.task)


def test_moves_keep_every_token_and_only_guessed_lengths_change() -> None:
    chance, lengths = torch.Generator().manual_seed(0), torch.tensor([6, 5])
    point = torch.arange(16.0).view(2, 8, 1)
    kinds = set()
    for _ in range(60):
        other, ends = moved(point, lengths, 1, False, chance)
        assert torch.equal(ends, lengths)
        assert torch.equal(other.flatten().sort().values, point.flatten())
        assert torch.equal(other[:, 0], point[:, 0])
        kinds.add(tuple(other.flatten().tolist()))
    assert len(kinds) > 10
    assert any(not torch.equal(moved(point, lengths, 1, True, chance)[1], lengths) for _ in range(30))


def test_usual_pairs_prefer_what_public_texts_have() -> None:
    pairs = usual_pairs(torch.tensor([[1, 2, 4, 0]] * 5), FORM)
    assert unusual(torch.tensor([[1, 2, 4, 0]]), pairs, FORM) < unusual(
        torch.tensor([[2, 1, 4, 0]]), pairs, FORM
    )
