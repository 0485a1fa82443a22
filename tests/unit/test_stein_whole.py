"""The Stein attacks from crafted weights to what they claim, on very small batches."""

import dataclasses
import math

import pytest
import torch
from small_head import TASK, known, played
from torch import Tensor

from fedsim.attacks.privacy.stein import stein, stein_exact
from fedsim.attacks.privacy.stein.batch import EXACT, Batch
from fedsim.attacks.privacy.stein.stein import Stein
from fedsim.attacks.privacy.stein.stein_exact import SteinExact
from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Attack
from fedsim.core.types import Interrupted, Reconstruction


def error(guess: Reconstruction, images: Tensor) -> float:
    """Largest error of a true image's nearest guess."""
    assert guess.images is not None
    return float(torch.cdist(images.flatten(1), guess.images.flatten(1)).amin(1).max())


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_a_whole_batch_comes_back_with_its_labels(activation: str) -> None:
    attack = SteinExact()
    case = played(attack, width=40, activation=activation)
    guess = attack.run(case.model, TASK, [case.seen])
    assert error(guess, case.images) < 1e-3
    assert guess.labels is not None
    assert guess.class_counts is not None
    assert guess.class_presence is not None
    order = torch.cdist(case.images.flatten(1), guess.images.flatten(1)).argmin(1)
    assert torch.equal(guess.labels[order], case.labels)
    assert torch.equal(guess.class_counts, case.labels.bincount(minlength=TASK.num_classes))
    assert torch.equal(guess.class_presence, guess.class_counts > 0)
    assert guess.embeddings is None
    assert guess.embedding_layer is None
    assert guess.residual < 1e-3
    assert guess.seconds > 0


def test_without_a_disclosed_number_counts_are_not_claimed() -> None:
    attack = SteinExact()
    case = played(attack, width=40)
    guess = attack.run(case.model, TASK, [dataclasses.replace(case.seen, num_examples=None)])
    assert error(guess, case.images) < 1e-3  # singular values show how many there are
    assert guess.class_counts is None  # the same batch twice has the same gradient
    assert guess.labels is not None
    assert int(guess.class_presence.sum()) == 3


class Counts(Attack):
    """A label attack that says what it is told to."""

    def __init__(self, counts: list[int] | None, problem: str = "") -> None:
        self.counts, self.problem = counts, problem

    def run(self, model, task, observations) -> Reconstruction:
        if self.problem:
            raise FedsimError(self.problem)
        return Reconstruction(class_counts=None if self.counts is None else torch.tensor(self.counts))


def test_a_label_attack_says_how_many_there_are(monkeypatch, caplog) -> None:
    case = played(SteinExact(), width=40)
    monkeypatch.setattr(stein_exact, "clear_rank", lambda gradient: None)
    hidden = dataclasses.replace(case.seen, num_examples=None)
    told = SteinExact(labels=Counts([1, 1, 1, 0])).run(case.model, TASK, [hidden])
    assert error(told, case.images) < 1e-3
    for labels in (None, Counts(None), Counts([0, 0, 0, 0]), Counts([], "cannot say")):
        with pytest.raises(FedsimError, match="neither the client nor the gradient"):
            SteinExact(labels=labels).run(case.model, TASK, [hidden])
    assert "cannot say" in caplog.text


def test_features_of_a_deeper_model_are_embeddings() -> None:
    attack = SteinExact()
    case = played(attack, model="fcn3")
    guess = attack.run(case.model, TASK, [case.seen])
    assert (guess.images, guess.labels) == (None, None)
    assert guess.embeddings is not None
    assert guess.embeddings.dtype == torch.float32
    assert len(guess.embeddings) == 3
    assert guess.embedding_layer is not None


def test_an_interrupted_search_keeps_what_it_found(monkeypatch) -> None:
    attack = SteinExact()
    case = played(attack, width=40)
    search = Batch.search

    def once(batch: Batch, *rest: object) -> int:
        found = search(batch, *rest)
        raise KeyboardInterrupt if len(batch.columns) else AssertionError(found)

    monkeypatch.setattr(Batch, "search", once)
    with pytest.raises(Interrupted) as stopped:
        attack.run(case.model, TASK, [case.seen])
    assert stopped.value.guess.images is not None

    def never(batch: Batch, *rest: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(Batch, "search", never)
    with pytest.raises(KeyboardInterrupt):
        attack.run(case.model, TASK, [case.seen])
    monkeypatch.setattr(Batch, "search", lambda batch, *rest: 0)
    with pytest.raises(FedsimError, match="no input of layer 'hidden1' was found, from 40 units"):
        attack.run(case.model, TASK, [case.seen])


def test_time_and_patience_end_a_search(monkeypatch, caplog) -> None:
    case, asked = played(SteinExact(), width=40), list[tuple[int, float]]()

    def search(batch: Batch, starts: int, random: torch.Generator, tolerance: float) -> int:
        asked.append((starts, tolerance))
        return 0

    monkeypatch.setattr(Batch, "search", search)
    with pytest.raises(FedsimError, match="no input"):
        SteinExact(starts=5).run(case.model, TASK, [case.seen])
    assert [starts for starts, _ in asked] == [0, 5, 5, 5, 5, 5, 5 + 3]  # moments first; then a guess
    assert [tolerance for _, tolerance in asked] == [EXACT] * 6 + [math.inf]
    asked.clear()
    with pytest.raises(FedsimError, match="no input"):
        SteinExact(starts=5, seconds=1e-9).run(case.model, TASK, [case.seen])
    assert [tolerance for _, tolerance in asked] == [math.inf]
    assert "3 of 3 inputs are no more than guesses" in caplog.text
    asked.clear()
    monkeypatch.setattr(Batch, "search", lambda *given: search(*given) or int(len(asked) == 3))
    with pytest.raises(FedsimError, match="no input"):
        SteinExact(starts=5).run(case.model, TASK, [case.seen])
    assert [starts for starts, _ in asked] == [0, 5, 5, 0, 5, 5, 5, 5, 5, 8]  # found one: patience anew


def test_what_was_found_rejected_or_is_impossible_is_not_new() -> None:
    truth = known("tanh", often=(1, 1, 1))
    batch = Batch.of(truth.head, truth.form, 3, 2.0)
    points = truth.inputs @ batch.basis.T / 2.0
    columns = batch.whole.slopes(points)
    batch.columns, batch.rejected = columns[:1], columns[1:2]
    assert [batch._is_new(point, column) for point, column in zip(points, columns, strict=True)] == [
        False,
        False,
        True,
    ]
    for size, is_new in ((0.05, False), (0.2, True), (9.0, True), (20.0, False)):
        assert batch._is_new(size * points[2] / points[2].norm(), columns[2]) == is_new
    near = columns[0] * (1 + 1e-4)
    assert not batch._is_new(points[0], near)
    batch.tolerance = 1e-3
    assert batch._is_new(points[0], columns[0] * (1 + 2e-3))
    batch.tolerance = 1.0  # of noisy gradients: still no more than .05
    assert not batch._is_new(points[0], columns[0] * 1.04)
    assert batch._is_new(points[0], columns[0] * 1.06)


def test_mixtures_are_rejected_where_gradients_are_exact() -> None:
    truth = known("relu", often=(1, 1, 1))
    batch = Batch.of(truth.head, truth.form, 3, 2.0)
    points = truth.inputs @ batch.basis.T / 2.0
    columns, low, high = batch.whole.slopes(points), *batch.whole.levels
    mixed = torch.where(torch.arange(columns.shape[1]) % 2 == 0, high, low)  # no input has every other unit
    batch.columns, batch.points = torch.cat([columns[:2], mixed[None]]), points
    batch.tolerance = 11 * EXACT
    assert batch.reject_mixtures() == 0
    batch.tolerance = 9 * EXACT
    assert batch.reject_mixtures() == 1
    assert torch.equal(batch.columns, columns[:2])
    assert torch.equal(batch.points, points[:2])
    assert torch.equal(batch.rejected, mixed[None])


def test_guesses_claim_no_labels() -> None:
    attack = SteinExact(seconds=1e-9)
    case = played(attack, width=40)
    guess = attack.run(case.model, TASK, [case.seen])
    assert guess.images is not None
    assert (guess.labels, guess.class_counts, guess.class_presence) == (None, None, None)


def test_classes_that_a_client_left_out_are_told_by_the_hidden_errors() -> None:
    attack = SteinExact()
    case = played(attack, width=40)
    name = next(name for name in case.seen.received if name.startswith("output") and "weight" in name)
    gradient = case.seen.received[name].clone()
    gradient[0] = 0
    seen = dataclasses.replace(case.seen, received=dict(case.seen.received) | {name: gradient})
    guess = attack.run(case.model, TASK, [seen])
    order = torch.cdist(case.images.flatten(1), guess.images.flatten(1)).argmin(1)
    assert guess.labels is not None
    assert torch.equal(guess.labels[order], case.labels)


def test_the_published_attack_says_what_it_needs() -> None:
    attack = Stein()
    case = played(attack, width=12)
    with pytest.raises(FedsimError, match="do not disclose their batch size"):
        attack.run(case.model, TASK, [dataclasses.replace(case.seen, num_examples=None)])
    inputs = math.prod(TASK.input_shape)
    with pytest.raises(FedsimError, match=f"{inputs + 1} examples of {inputs} inputs each"):
        attack.run(case.model, TASK, [dataclasses.replace(case.seen, num_examples=inputs + 1)])
    with pytest.raises(FedsimError, match="expected at least 16 hidden units for 4 examples, got 12"):
        attack.run(case.model, TASK, [dataclasses.replace(case.seen, num_examples=4)])
    assert attack.run(case.model, TASK, [case.seen]).images.shape == (3, *TASK.input_shape)


def test_the_published_attack_passes_its_settings_on(monkeypatch) -> None:
    attack = Stein(order=3, passes=5, iterations=7, seed=2)
    case, asked = played(attack, width=16), dict[str, object]()

    def estimate(units, act, bias, **settings):
        asked.update(settings, bias=bias, weights=torch.cat([part for part, _ in units()]))
        return stein.Estimate(
            inputs=torch.ones(3, math.prod(TASK.input_shape)).double(), signed=True, residual=0.25
        )

    monkeypatch.setattr(stein, "estimate", estimate)
    guess = attack.run(case.model, TASK, [case.seen])
    assert (asked["order"], asked["passes"], asked["iterations"], asked["size"]) == (3, 5, 7, 3)
    assert asked["inputs"] == math.prod(TASK.input_shape)
    assert float(asked["weights"].square().mean()) == pytest.approx(1, rel=1e-5)  # standard units
    assert asked["bias"] == pytest.approx(float(case.seen.sent["hidden1.bias"][0]))
    assert guess.residual == 0.25
    assert guess.labels is None
    assert guess.embeddings is None
