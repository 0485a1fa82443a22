"""Tables and texts as pixels, and the models of the papers on data forging."""

import math
from pathlib import Path

import pytest
import torch

import fedsim
from fedsim.attacks.privacy.exact.row_lookup import categories_of
from fedsim.attacks.privacy.matching.rows import Rows
from fedsim.core.errors import FedsimError
from fedsim.core.inputs import Choice, Number, Row, Tokens
from fedsim.core.training import Batch, sgd_step
from fedsim.core.types import Task
from fedsim.data.adult import COLUMNS, adult
from fedsim.data.imdb import imdb
from fedsim.data.tabular import tabular
from fedsim.data.text import text
from fedsim.models.last_linear import last_linear_name
from fedsim.models.mlp import mlp
from fedsim.models.transformer import transformer
from fedsim.models.vggmini import vggmini

POOR = "39, State-gov, 77516, Bachelors, 13, Divorced, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40"
RICH = "90, ?, 12285, Masters, 14, Married-civ-spouse, ?, Husband, Black, Female, 0, 0, 99"
NAMES = [
    f"{column.name}={category}" for column in COLUMNS for category in getattr(column, "categories", ("",))
]


def people(folder: Path, *, data: str | None = None, test: str | None = None) -> str:
    rows = f"{POOR}, United-States, <=50K\n{RICH}, ?, >50K\n"
    (folder / "adult.data").write_text(rows + "\n" if data is None else data)
    dotted = rows.replace("50K", "50K.")
    (folder / "adult.test").write_text("|1x3 Cross validator\n" + dotted if test is None else test)
    return str(folder)


def test_adult_is_read_column_by_column(tmp_path: Path) -> None:
    data = adult(root=people(tmp_path))
    assert data.task.input_shape == (1, 1, 108)
    assert data.train.labels.tolist() == data.test.labels.tolist() == [0, 1]
    assert torch.equal(data.train.pixels, data.test.pixels)
    poor, rich = (dict(zip(NAMES, row.flatten().tolist(), strict=True)) for row in data.train.pixels)
    assert {name for name, value in rich.items() if value == 255} == {
        *("age=", "hours-per-week=", "workclass=?", "education=Masters", "marital-status=Married-civ-spouse"),
        *("occupation=?", "relationship=Husband", "race=Black", "sex=Female", "native-country=?"),
    }
    assert (rich["fnlwgt="], rich["capital-gain="]) == (0, 0)
    assert poor["age="] == round(255 * (39 - 17) / (90 - 17))
    assert 0 < poor["capital-gain="] < 255
    assert poor["native-country=United-States"] == 255


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (f"{POOR}, United-States, <=50K\n{POOR}, <=50K\n", "line 2: expected 15 values, got 14"),
        (f"{POOR}, Atlantis, <=50K\n", "line 1: native-country: expected one of United-States.*'Atlantis'"),
        (f"{POOR}, Peru, maybe\n", "line 1: income: expected one of <=50K, >50K, got 'maybe'"),
        (f"{POOR}, Peru, >50K\n".replace("39", "old"), "age: expected a number from 0 upwards, got 'old'"),
        (f"{POOR}, Peru, >50K\n".replace("39", "nan"), "age: expected a number from 0 upwards, got 'nan'"),
        (f"{POOR}, Peru, >50K\n".replace("White", "?"), r"race: expected one of .*, got '\?'"),
        ("\n", "expected at least one row"),
    ],
)
def test_malformed_rows_are_named_by_file_line_and_column(tmp_path: Path, data: str, words: str) -> None:
    with pytest.raises(FedsimError, match=rf"adult\.data.*{words}"):
        adult(root=people(tmp_path, data=data))
    (tmp_path / "adult.test").unlink()
    (tmp_path / "adult.data").write_text(f"{POOR}, Peru, >50K\n")
    with pytest.raises(FedsimError, match=r"no such file: .*adult\.test\. Remedy"):
        adult(root=str(tmp_path))


def test_a_made_up_table_is_seeded_and_its_rule_is_curved() -> None:
    data, again, other = tabular(), tabular(), tabular(seed=1)
    assert torch.equal(data.train.pixels, again.train.pixels)
    assert torch.equal(data.test.labels, again.test.labels)
    assert not torch.equal(data.train.pixels, other.train.pixels)
    assert data.task.input_shape == (1, 1, 108)
    for images in (data.train, data.test):
        assert 0.15 < float(images.labels.double().mean()) < 0.35
        for name, column in zip(NAMES, images.pixels.flatten(1).T, strict=True):
            assert name.endswith("=") or set(column.tolist()) <= {0, 255}
    images, accuracy = data.train.batch(torch.arange(2000)), {}
    for depth in (1, 2):
        torch.manual_seed(0)
        model = mlp(data.task, depth=depth, width=100)
        for step in range(600):
            chosen = torch.arange(step * 64, (step + 1) * 64) % 2000
            sgd_step(model, Batch(images=images[chosen], labels=data.train.labels[chosen]), 0.05)
        right = model(data.test.batch(torch.arange(500))).argmax(1) == data.test.labels
        accuracy[depth] = float(right.double().mean())
    assert accuracy[2] > accuracy[1] > 0.78  # always the first class: .746
    with pytest.raises(FedsimError, match=r"data\.train_size: expected a whole number of at least 8, got 3"):
        tabular(train_size=3)


def test_made_up_texts_are_seeded_words_whose_letters_tell_the_class() -> None:
    data, again = text(), text()
    assert torch.equal(data.train.pixels, again.train.pixels)
    assert not torch.equal(data.train.pixels, text(seed=1).train.pixels)
    assert data.task.input_shape == (1, 1, 128)
    assert set(data.train.pixels.flatten().tolist()) == {32, *range(97, 123)}  # filled to the end
    letters = [
        (images.pixels.flatten(1)[:, :, None] == torch.arange(97, 123)).double().mean(1)
        for images in (data.train, data.test)
    ]
    means = torch.stack([letters[0][data.train.labels == label].mean(0) for label in (0, 1)])
    nearest = torch.cdist(letters[1], means).argmin(1)
    assert float((nearest == data.test.labels).double().mean()) > 0.75
    with pytest.raises(FedsimError, match=r"data\.tone: expected a share in \[0, 1\], got 2"):
        text(tone=2)


def reviews(folder: Path) -> None:
    for split in ("train", "test"):
        for name in ("neg", "pos"):
            (folder / split / name).mkdir(parents=True)
            for number in range(3):
                (folder / split / name / f"{number}_5.txt").write_text(f"{split} {name} {number} é")


def test_reviews_are_read_to_a_length_and_padded_with_zeros(tmp_path: Path) -> None:
    reviews(tmp_path)
    data = imdb(root=str(tmp_path), length=20)
    assert data.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert bytes(data.test.pixels[4].flatten().tolist()) == "test pos 1 é".encode().ljust(20, b"\0")
    assert torch.equal((data.test.batch(torch.tensor([4])) * 255).round().byte(), data.test.pixels[4:5])
    cut = imdb(root=str(tmp_path), length=6, unit="pieces", vocabulary=60)
    assert isinstance(cut.task.inputs, Tokens)
    assert len(cut.train.labels) == len(data.train.labels)
    assert len(cut.test.labels) == len(data.test.labels)
    assert cut.train.batch(torch.arange(1)).shape == (1, 6)
    short = imdb(root=str(tmp_path), length=5, limit=2)
    assert short.train.pixels.shape == (4, 1, 1, 5)
    assert short.train.labels.tolist() == [0, 0, 1, 1]


def test_missing_reviews_and_wrong_sizes_are_named(tmp_path: Path) -> None:
    reviews(tmp_path)
    for path in (tmp_path / "test" / "pos").iterdir():
        path.unlink()
    with pytest.raises(FedsimError, match=rf"no reviews found: looked for {tmp_path}/test/pos.*Remedy"):
        imdb(root=str(tmp_path))
    with pytest.raises(FedsimError, match=r"data\.length: expected a whole number of at least 1, got 0"):
        imdb(root=str(tmp_path), length=0)
    with pytest.raises(
        FedsimError, match=r"data\.limit: expected null or a whole number of at least 1, got 0"
    ):
        imdb(root=str(tmp_path), limit=0)
    (tmp_path / "test" / "pos" / "0_9.txt").mkdir()
    with pytest.raises(FedsimError, match=r"0_9\.txt: cannot be read"):
        imdb(root=str(tmp_path))


def size(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_models_have_the_sizes_that_their_documents_say() -> None:
    pictures, bytes_, row = (
        Task(input_shape=shape, num_classes=classes)
        for shape, classes in (((3, 32, 32), 10), ((1, 1, 128), 2), ((1, 1, 108), 2))
    )
    assert size(vggmini(pictures)) == 5_749_034
    assert size(transformer(bytes_)) == 596_450
    fcn = mlp(row, depth=2, width=100)
    assert size(fcn) == 109 * 100 + 101 * 2
    assert fcn(torch.rand(3, 1, 1, 108)).shape == (3, 2)
    assert last_linear_name(transformer(bytes_, depth=1), bytes_.input_shape) == "output"
    with pytest.raises(FedsimError, match="does not fit images of shape"):
        vggmini(row)
    with pytest.raises(FedsimError, match=r"heads that divide the width.*heads=5"):
        transformer(bytes_, heads=5)


def test_a_transformer_sees_no_later_byte_and_every_earlier_one() -> None:
    torch.manual_seed(0)
    model = transformer(Task(input_shape=(1, 1, 12), num_classes=2), depth=2, width=8, heads=2).double()
    positions = model[:-2]  # without the mean and the last layer
    images = torch.randint(256, (2, 1, 1, 12)) / 255
    changed = images.clone()
    changed[..., 7] = 1 - changed[..., 7]
    before, after = positions(images), positions(changed)
    assert before.shape == (2, 12, 8)
    assert torch.equal(before[:, :7], after[:, :7])
    assert ((before - after)[:, 7:].abs().amax(dim=2) > 0).all()
    assert not torch.equal(model(images), model(changed))


def test_a_transformer_reads_whole_bytes_and_knows_their_places() -> None:
    model = transformer(Task(input_shape=(1, 1, 4), num_classes=2), depth=1, width=8, heads=2)
    values = torch.tensor([0, 255, 97, 98]).view(1, 1, 1, 4)
    assert model[0](values / 255).tolist() == [[0, 255, 97, 98]]
    assert model[0](values.float() / 255 + 0.001).tolist() == [[0, 255, 97, 98]]
    assert not torch.allclose(model(values / 255), model(values.flip(3) / 255))


def test_numbers_stay_in_their_ranges_and_scores_of_categories_are_free() -> None:
    form = Row(columns=(Number("a", 0, 1), Choice("job", ("x", "y")), Number("b", 0, 9)))
    task = Task(num_classes=2, input_shape=form.shape, mean=(0.5,), std=(0.25,), inputs=form)
    rows, point = Rows(task), torch.tensor([[-1.0, 5.0, -5.0, 3.0], [0.25, 0.5, 0.5, 0.75]])
    rows.keep_inside(point)
    assert point.tolist() == [[0.0, 5.0, -5.0, 1.0], [0.25, 0.5, 0.5, 0.75]]
    shown = rows.pixels(rows.images(point)).flatten(1)
    assert shown[1].tolist() == pytest.approx([0.25, 0.5, 0.5, 0.75])
    assert shown[0].tolist() == pytest.approx([0, 1, 0, 1], abs=1e-4)
    start = rows.point((torch.tensor([[0.3, 1.0, 0.0, 0.6]]).view(-1, *form.shape) - 0.5) / 0.25)
    assert start[0].tolist() == pytest.approx([0.3, 4 * math.tanh(0.5), -4 * math.tanh(0.5), 0.6])


def test_an_ensemble_takes_medians_and_votes_of_rows_that_belong_together() -> None:
    form = Row(columns=(Number("age", 0, 1), Choice("job", ("a", "b", "c"))))
    task = Task(num_classes=2, input_shape=form.shape, mean=(0.5,), std=(0.25,), inputs=form)
    rows, labels = Rows(task), torch.tensor([0, 0, 1])

    def guess(*cells: tuple[float, float, float, float]) -> torch.Tensor:
        return (torch.tensor(cells).view(-1, *form.shape) - 0.5) / 0.25

    old, young, other = (0.9, 0.8, 0.1, 0.1), (0.2, 0.1, 0.8, 0.1), (0.2, 0.1, 0.8, 0.1)
    guesses = [
        guess(old, young, other),
        guess((0.3, 0.1, 0.1, 0.8), (0.8, 0.6, 0.3, 0.1), (0.4, 0.0, 0.4, 0.6)),  # in another order
        guess((0.1, 0.0, 0.9, 0.1), (0.1, 0.4, 0.5, 0.1), (0.9, 0.0, 0.1, 0.9)),  # the third: label 1
    ]
    agreed = rows.pixels(rows.pooled(guesses, 0, labels)).view(3, 4)
    assert torch.allclose(agreed[:, 0], torch.tensor([0.8, 0.2, 0.4]))
    assert agreed[:, 1:].argmax(dim=1).tolist() == [0, 1, 2]
    assert set(agreed[:, 1:].flatten().round(decimals=5).tolist()) == {0.0, 1.0}


def test_tableak_tells_what_its_ensemble_agrees_on() -> None:
    data = tabular(train_size=40, test_size=8)
    torch.manual_seed(0)
    model = fedsim.model("mlp", task=data.task, width=8)
    rows, labels = data.train.batch(torch.arange(3)), data.train.labels[:3]
    seen = fedsim.observe(model, rows, labels, inputs=data.task.inputs)
    few = {"optimiser": {"iterations": 2}, "candidates": 3}
    pooled, best = (
        fedsim.attack("tableak", ensemble=ensemble, **few).run(model, data.task, [seen]).images.flatten(1)
        for ensemble in (True, False)
    )
    first, end = data.task.inputs.groups[0]
    assert pooled[:, first:end].unique().tolist() == [0, 1]
    assert len(best[:, first:end].unique()) > 2
    with pytest.raises(FedsimError, match=r"expected parametrisation=rows or .*, got pixels"):
        fedsim.attack("tableak", parametrisation="pixels")


@pytest.mark.parametrize("size", [8, 40])
def test_rows_behind_embeddings_are_looked_up_and_categories_always(size: int) -> None:
    data = tabular(train_size=80)
    torch.manual_seed(0)
    network = fedsim.model("row_mlp", task=data.task)
    rows, labels = data.train.batch(torch.arange(size)), data.train.labels[:size]
    seen = fedsim.observe(network, rows, labels, inputs=data.task.inputs)
    guess = fedsim.attack("row_lookup")(
        network, seen, input_shape=data.task.input_shape, inputs=data.task.inputs
    )
    metrics = ["exact_rows", "bag_of_words"]
    scores = fedsim.score(guess, rows, labels, metrics=metrics, inputs=data.task.inputs)
    assert scores["bag_of_words"].value == 1
    if size == 40:  # more rows than the features tell apart
        assert guess.images is None
        return
    assert scores["exact_rows"].value == 1
    assert guess.certified is not None
    assert bool(guess.certified.all())


def test_categories_are_not_told_behind_noise() -> None:
    data = tabular(train_size=80)
    network = fedsim.model("row_mlp", task=data.task)
    rows, labels = data.train.batch(torch.arange(40)), data.train.labels[:40]
    assert isinstance(data.task.inputs, Row)
    for noise, told in (([], True), ([fedsim.defense("noise", sigma=1e-3)], False)):
        seen = fedsim.observe(network, rows, labels, inputs=data.task.inputs, defenses=noise)
        found = categories_of(network, data.task, data.task.inputs, seen.received)
        assert (found is not None) == told
