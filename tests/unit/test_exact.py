"""The exact family: the last layer alone, the first layer alone, local steps one by one, and certificates."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import fedsim
from fedsim.attacks.privacy import claims
from fedsim.attacks.privacy.exact.behind import (
    Behind,
    alone,
    behind,
    mismatch,
    read_labels,
    rounded_error,
    rounded_label,
    softmax_error,
)
from fedsim.attacks.privacy.exact.certificates import blur, false_rates
from fedsim.attacks.privacy.exact.counting import at_least, nearest_counts
from fedsim.attacks.privacy.exact.fedavg_peeling import FedAvgPeeling
from fedsim.attacks.privacy.exact.first_layer_peeling import FirstLayerPeeling
from fedsim.attacks.privacy.exact.head_peel import HeadPeel, others
from fedsim.attacks.privacy.exact.head_peeling import HeadPeeling, _shown, head, with_unseen
from fedsim.attacks.privacy.exact.kinks import kinked_errors
from fedsim.attacks.privacy.exact.labels import Labels, count_bounds, within
from fedsim.attacks.privacy.exact.local_training import different
from fedsim.attacks.privacy.exact.membership import with_one
from fedsim.attacks.privacy.exact.peel import MISMATCH, Peel
from fedsim.attacks.privacy.exact.peeling import Peeling
from fedsim.attacks.privacy.exact.spaces import row_scales, spaces
from fedsim.attacks.privacy.interruptible import shown_after
from fedsim.attacks.privacy.labels.ilrg import ILRG
from fedsim.attacks.privacy.matching.linear_layers import Between, linear_chain
from fedsim.core.errors import FedsimError
from fedsim.core.training import batch_gradient
from fedsim.core.types import Interrupted, Observation, Task, Truth
from fedsim.metrics.certified import Certified, right_certificates
from fedsim.models.mlp import mlp
from fedsim.report.guesses import _pictures

TASK = Task(input_shape=(1, 6, 6), num_classes=20)


def batch(number: int, classes: int, seed: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    images = torch.rand(number, *TASK.input_shape, generator=random)
    return images, torch.randint(classes, (number,), generator=random)


def network(classes: int = 20, hidden: int = 30, sure: float = 1.0) -> nn.Sequential:
    """Return a network behind whose head nothing is linear; sure: factor of its logits."""
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(128, hidden),
        nn.ReLU(),
        nn.Linear(hidden, classes),
    )
    with torch.no_grad():
        model[-1].weight *= sure
    return model.eval()


def observed(model: nn.Module, images: Tensor, labels: Tensor, **claims: object) -> Observation:
    sent = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    received, _ = batch_gradient(model, images, labels)
    told = {"kind": "gradient", "num_examples": len(labels), **claims}
    return Observation(round=1, client=0, sent=sent, received=received, **told)


def features_of(model: nn.Sequential, images: Tensor) -> Tensor:
    with torch.no_grad():
        return model[:-1](images)


def distances(found: Tensor, true: Tensor) -> Tensor:
    """Return how far each true row is from the nearest found one, relatively."""
    rows, goals = found.double().flatten(1), true.double().flatten(1)
    return torch.cdist(goals, rows).min(dim=1).values / goals.norm(dim=1)


@pytest.mark.parametrize(("sure", "seed"), [(1.0, 0), (1.0, 1), (20.0, 2), (20.0, 3), (60.0, 4)])
def test_the_last_layer_gives_labels_and_features_of_every_example(sure: float, seed: int) -> None:
    model, (images, labels) = network(sure=sure), batch(6, 20, seed)
    labels[1] = labels[0]  # two of a class are two examples
    guess = HeadPeeling().run(model, TASK, [observed(model, images, labels)])
    assert torch.equal(guess.class_counts, labels.bincount(minlength=20))
    assert torch.equal(guess.count_bounds, torch.stack([guess.class_counts] * 2))
    assert float(distances(guess.embeddings, features_of(model, images)).max()) < 1e-2
    assert sorted(guess.labels.tolist()) == sorted(labels.tolist())


def test_the_entry_that_float32_rounds_most_is_left_free() -> None:
    model, (images, _) = network(sure=600.0), batch(5, 20, 7)
    labels = model(images).argmax(dim=1)
    labels[:4] = (labels[:4] + 3) % 20  # the model is sure of the last, and right: a small error
    layer, size, different = head(model, TASK, observed(model, images, labels))
    peel = HeadPeel.of(layer, size, different, nonnegative=True)
    inputs = torch.cat([features_of(model, images).double(), torch.ones(5, 1)], dim=1) @ peel.basis.T
    whole = softmax_error(inputs @ peel.weight.T, labels)
    outside = whole - (whole @ peel.columns.basis) @ peel.columns.basis.T
    shares = others(inputs @ peel.weight.T, labels)
    rounded = outside.norm(dim=1) / whole.norm(dim=1)
    free = peel._outside(shares, labels).norm(dim=1) / shares.norm(dim=1)
    assert float(whole[4].norm()) < 0.02
    assert float(free[4]) < 0.2 * float(rounded[4])


def test_equal_examples_are_counted_and_examples_without_loss_are_not_guessed() -> None:
    model, (images, labels) = network(), batch(4, 20, 5)
    twice, again = torch.cat([images, images[:1]]), torch.cat([labels, labels[:1]])
    guess = HeadPeeling().run(model, TASK, [observed(model, twice, again)])
    assert torch.equal(guess.class_counts, again.bincount(minlength=20))
    layer, size, different = head(model, TASK, observed(model, twice, again))
    peel = HeadPeel.of(layer, size, different, nonnegative=True)
    HeadPeeling()._search(peel, observed(model, twice, again))
    assert sorted(zip(peel.labels.tolist(), peel.copies.tolist(), strict=True)) == sorted(
        (label, 2 if place == 0 else 1) for place, label in enumerate(labels.tolist())
    )
    with torch.no_grad():
        model[-1].weight *= 3000.0  # one-hot probabilities: the one example that is right leaves nothing
        best = model(images).argmax(dim=1)
    labels = torch.where(torch.arange(4) == 0, best, (best + 1 + torch.arange(4)) % 20)
    guess = HeadPeeling().run(model, TASK, [observed(model, images, labels)])
    true = labels.bincount(minlength=20)
    assert bool((guess.class_counts <= true).all())
    assert int(guess.class_counts.sum()) < 4
    assert bool((guess.count_bounds[1] >= true).all())


def test_too_many_examples_several_steps_and_nothing_at_all_are_refused_with_a_remedy() -> None:
    model, (images, labels) = network(), batch(12, 20, 0)
    with pytest.raises(FedsimError, match=r"at most 9 different examples.*attack=labels"):
        HeadPeeling().run(model, TASK, [observed(model, images, labels)])
    seen = observed(model, images[:3], labels[:3])
    several = dataclasses.replace(seen, kind="update", local_steps=3, learning_rate=0.1)
    with pytest.raises(FedsimError, match="one gradient step"):
        HeadPeeling().run(model, TASK, [several])
    nothing = {name: torch.zeros_like(tensor) for name, tensor in seen.received.items()}
    with pytest.raises(FedsimError, match="gradient is zero"):
        HeadPeeling().run(model, TASK, [dataclasses.replace(seen, received=nothing)])


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(2, 12), st.integers(0, 10**6), st.floats(0.1, 30))
def test_no_count_is_ever_outside_its_bounds(size: int, classes: int, seed: int, sharp: float) -> None:
    random = torch.Generator().manual_seed(seed)
    logits = sharp * torch.randn(size, classes, generator=random, dtype=torch.float64)
    labels = torch.randint(classes, (size,), generator=random)
    true = labels.bincount(minlength=classes)
    biases = logits.softmax(dim=1).sum(dim=0) - true
    fewest = at_least(biases, size)
    assert bool((fewest <= true).all())
    assert bool((true <= fewest + size - fewest.sum()).all())


def test_bounds_tell_counts_where_probabilities_are_small_and_nothing_where_they_are_not() -> None:
    true = torch.tensor([3, 0, 1, 2])
    even = torch.full((4,), 6 * 0.05)
    assert at_least(even - true, 6).tolist() == true.tolist()
    assert at_least(true - true + 0.0, 6).tolist() == [0, 0, 0, 0]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 6), min_size=2, max_size=8), st.data())
def test_counts_are_moved_into_their_bounds_and_keep_their_sum(
    counts: list[int], data: st.DataObject
) -> None:
    true = torch.tensor(data.draw(st.permutations(counts)))  # as many examples, of other classes
    fewest = (true - 1).clamp(min=0)
    bounds = torch.stack([fewest, fewest + true.sum() - fewest.sum()])
    guess = torch.tensor(counts)
    moved = within(guess, bounds)
    assert bool((moved >= bounds[0]).all())
    assert bool((moved <= bounds[1]).all())
    assert int(moved.sum()) == int(true.sum())


def test_labels_takes_the_first_means_that_accounts_for_every_example() -> None:
    class Never(ILRG):
        def run(self, *given: object) -> fedsim.Reconstruction:
            raise AssertionError("something exact was there")

    model, (images, labels) = network(sure=20.0), batch(6, 20, 3)
    guess = Labels(otherwise=Never()).run(model, TASK, [observed(model, images, labels)])
    assert torch.equal(guess.class_counts, labels.bincount(minlength=20))
    few = Task(input_shape=TASK.input_shape, num_classes=4)
    torch.manual_seed(2)
    model, (images, labels) = mlp(few, width=60).eval(), batch(8, 4, 1)  # too many for the last layer alone
    guess = Labels(otherwise=Never()).run(model, few, [observed(model, images, labels)])
    assert torch.equal(guess.class_counts, labels.bincount(minlength=4))


def test_labels_that_nothing_exact_tells_lie_within_their_bounds() -> None:
    few = Task(input_shape=TASK.input_shape, num_classes=4)
    model, (images, labels) = network(classes=4, hidden=12, sure=30.0), batch(40, 4, 1)
    seen = observed(model, images, labels)
    guess, bounds = Labels(otherwise=ILRG()).run(model, few, [seen]), count_bounds(model, few, seen)
    assert int(guess.class_counts.sum()) == 40
    assert bool((bounds[0] <= guess.class_counts).all())
    assert bool((guess.class_counts <= bounds[1]).all())
    assert bool((guess.count_bounds[0] <= labels.bincount(minlength=4)).all())
    assert count_bounds(model, few, dataclasses.replace(seen, num_examples=None)) is None


@pytest.mark.parametrize("activation", ["relu", "leaky_relu", "tanh", "sigmoid"])
def test_one_layer_and_the_network_behind_it_give_the_batch(activation: str) -> None:
    task = Task(input_shape=TASK.input_shape, num_classes=6)
    torch.manual_seed(3)
    model, (images, labels) = mlp(task, width=60, depth=2, activation=activation).eval(), batch(5, 6, 2)
    guess = FirstLayerPeeling(starts=48).run(model, task, [observed(model, images, labels)])
    assert float(distances(guess.images, images).max()) < 1e-3
    assert torch.equal(guess.class_counts, labels.bincount(minlength=6))
    assert bool(guess.certified.all())


def test_one_layer_before_relus_and_two_classes_is_refused_in_words() -> None:
    task, (images, labels) = Task(input_shape=TASK.input_shape, num_classes=2), batch(5, 2, 2)
    model = mlp(task, width=60, depth=2).eval()
    with pytest.raises(FedsimError, match="three classes or more behind ReLUs, got 2"):
        FirstLayerPeeling(starts=4, steps=2).run(model, task, [observed(model, images, labels)])


def test_a_point_at_which_no_unit_fires_is_no_example() -> None:
    random = torch.Generator().manual_seed(0)
    gradient, weight = (torch.randn(8, 6, generator=random, dtype=torch.float64) for _ in range(2))
    next_weight = torch.randn(3, 8, generator=random, dtype=torch.float64)
    behind = Behind(
        steps=((Between(modules=(nn.ReLU(),)), next_weight, torch.zeros(3, dtype=torch.float64)),)
    )
    here = spaces(gradient, weight, 3)
    dead = dataclasses.replace(here, offset=here.offset - 1e6)
    found = kinked_errors(dead, behind, torch.zeros(1, 2, dtype=torch.float64))
    assert found.errors.norm() == 0
    assert float(found.residuals) == 1.0


def updated(model: nn.Module, batches: list[tuple[Tensor, Tensor]], rate: float) -> Observation:
    """Return what a client sends after a step on each of these batches."""
    sent = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for images, labels in batches:
        gradient, _ = batch_gradient(model, images, labels)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter -= rate * gradient[name]
    received = {name: parameter.detach() - sent[name] for name, parameter in model.named_parameters()}
    told = {"local_steps": len(batches), "learning_rate": rate}
    size = sum(len(labels) for _, labels in batches)
    return Observation(
        round=1, client=0, sent=sent, received=received, kind="update", num_examples=size, **told
    )


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 0, 0), (0, 1, 0, 1), (0, 1, 1, 0)])
def test_an_update_gives_the_batches_of_all_local_steps(order: tuple[int, ...]) -> None:
    task = Task(input_shape=TASK.input_shape, num_classes=6)
    torch.manual_seed(4)
    model = mlp(task, width=60).eval()
    batches = [batch(3, 6, place) for place in order]
    seen = updated(model, batches, 0.05)
    guess = FedAvgPeeling(starts=64).run(model, task, [seen])
    images, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    assert len(guess.images) == 3 * len(order)
    assert float(distances(guess.images, images).max()) < 1e-3
    assert torch.equal(guess.class_counts, labels.bincount(minlength=6))
    assert bool(guess.certified.all())


def test_counts_alone_where_features_take_too_much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task(input_shape=TASK.input_shape, num_classes=40)
    torch.manual_seed(4)
    model, (images, labels) = mlp(task, width=60).eval(), batch(8, 40, 1)
    received, _ = batch_gradient(model, images, labels)
    sent = {name: parameter.detach() for name, parameter in model.named_parameters()}
    seen = Observation(round=1, client=0, sent=sent, received=received, kind="gradient", num_examples=8)
    monkeypatch.setattr(claims, "MOST_NUMBERS", 1000)
    guess = HeadPeeling().run(model, task, [seen])
    assert guess.embeddings is None
    assert torch.equal(guess.class_counts, labels.bincount(minlength=40))


def test_a_wrong_batch_size_makes_no_false_image_of_an_update() -> None:
    task = Task(input_shape=TASK.input_shape, num_classes=6)
    torch.manual_seed(4)
    model = mlp(task, width=60).eval()
    seen = updated(model, [batch(3, 6, step) for step in range(3)], 0.05)
    with pytest.raises(FedsimError, match="how many examples each of 3 steps had"):
        FedAvgPeeling().run(model, task, [dataclasses.replace(seen, num_examples=8)])


def test_the_chance_of_a_false_certificate_grows_with_tries_and_with_unknowns() -> None:
    small = torch.tensor([1e-3, 1e-1, 0.9])
    one, many = false_rates(small, 60, 19, 1), false_rates(small, 60, 19, 1000)
    assert bool((one[:-1] < one[1:]).all())
    assert bool((many >= one).all())
    assert float(false_rates(small[:1], 20, 23, 1)) == 1.0  # as many unknowns as equations
    assert float(one[0]) < 1e-6 < float(one[2])
    random = torch.Generator().manual_seed(
        0
    )  # vectors in 12 dimensions, best of a random space of 2 K - 1 = 5
    space = torch.linalg.qr(torch.randn(2000, 12, 5, generator=random, dtype=torch.float64))[0]
    vectors = torch.randn(2000, 12, 1, generator=random, dtype=torch.float64)
    outside = (vectors - space @ (space.mT @ vectors)).norm(dim=1) / vectors.norm(dim=1)
    expected = float(false_rates(torch.tensor([0.6]), 12, 5, 1))
    share = float((outside < 0.6).double().mean())
    assert abs(share - expected) < 4 * math.sqrt(expected / 2000)


def test_a_false_certificate_takes_a_right_one_away() -> None:
    images, labels = batch(4, 6, 0)
    truth = Truth(round=1, client=0, images=images, labels=labels)
    shown = torch.cat([images[:2], images[:1], torch.rand(1, *TASK.input_shape)])
    guess = fedsim.Reconstruction(images=shown, certified=torch.tensor([True, True, True, False]))
    assert right_certificates(guess, truth).tolist() == [True, True, False]
    assert Certified().score(guess, truth).value == pytest.approx(1 / 4)


def test_a_report_says_which_examples_are_certified_and_which_were_not_found() -> None:
    images, labels = batch(3, 6, 0)
    guess = fedsim.Reconstruction(images=images[[1, 0]], certified=torch.tensor([True, False]))
    drawn = _pictures(guess, Truth(round=1, client=0, images=images, labels=labels), "round 1")
    assert drawn is not None
    figure, title = drawn
    said = [axes.get_xlabel().split("\n")[-1] for axes in figure.axes[-3:]]
    assert said == ["uncertified", "certified", "not found"]
    assert "certified by the attack: 1 of 2" in title


def smooth(seed: int) -> tuple[nn.Sequential, Tensor, Tensor, Task]:
    task = Task(input_shape=TASK.input_shape, num_classes=6)
    torch.manual_seed(seed)
    return mlp(task, width=60, activation="sigmoid").eval(), *batch(6, 6, seed), task


def test_smooth_examples_settle_on_the_whole_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    model, images, labels, task = smooth(5)
    seen = observed(model, images, labels)
    guess = Peeling().run(model, task, [seen])
    monkeypatch.setattr(Peel, "settle", lambda *_: None)
    before = Peeling().run(model, task, [seen])
    worst = [float(distances(each.images, images).max()) for each in (before, guess)]
    assert worst[1] < 0.2 * worst[0] < 1e-3


def chained(model: nn.Module, task: Task, images: Tensor, labels: Tensor) -> tuple[Peel, Behind, Tensor]:
    """Return what peeling begins with, the network behind, and the true inputs in its coordinates."""
    layers, between = linear_chain(model, task, observed(model, images, labels))
    peel = Peel.of(layers[0], layers[1], between[0], len(labels))
    mean, std = (torch.tensor(side, dtype=torch.float64).view(1, -1, 1, 1) for side in (task.mean, task.std))
    rows = with_one(((images.double() - mean) / std).flatten(1))
    return peel, behind(layers, between), rows @ peel.basis.T


def test_only_an_example_of_this_step_has_the_error_of_a_label() -> None:
    model, images, labels, task = smooth(6)
    _, now, _ = chained(model, task, images, labels)
    peel, _, rows = chained(model, task, images, labels)
    outputs = rows @ peel.weight.T
    errors = now.errors(outputs, labels).detach() / 6
    moved = dataclasses.replace(now, steps=tuple((act, 1.5 * w, b + 0.3) for act, w, b in now.steps))
    assert float(mismatch(now, outputs, errors, 6).max()) < 1e-9
    assert float(mismatch(now, outputs, 2 * errors, 6).max()) < 1e-9  # there twice
    assert float(mismatch(moved, outputs, errors, 6).min()) > MISMATCH


def test_errors_lead_to_an_example_with_its_own_label_alone() -> None:
    model, images, labels, task = smooth(7)
    peel, network, rows = chained(model, task, images, labels)
    points = peel.whole.first.points(rows @ peel.weight.T).float().requires_grad_()
    own, wrong = (
        peel.whole.loss_with_errors(network, peel.columns, told)(points, None).detach()
        for told in (labels, (labels + 1) % 6)
    )
    assert float(own.max()) < 0.01 * float(wrong.min())


def test_a_weak_image_above_the_noise_is_counted() -> None:
    random = torch.Generator().manual_seed(0)
    errors, inputs = (torch.randn(side, 5, generator=random, dtype=torch.float64) for side in (40, 30))
    errors[:, 4] *= 1e-3
    noise = 1e-7 * torch.randn(40, 30, generator=random, dtype=torch.float64)
    assert different(errors @ inputs.T + noise, 5) == 5
    assert different(errors[:, :4] @ inputs[:, :4].T + noise, 5) == 4


def test_an_interrupted_search_shows_what_it_found_and_nothing_is_an_error() -> None:
    found = list[int]()
    guess = fedsim.Reconstruction(residual=0.5)

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(FedsimError, match="none was found"):
        shown_after(lambda: None, found, lambda: guess, nothing="none was found")
    with pytest.raises(KeyboardInterrupt) as stopped:
        shown_after(interrupted, found, lambda: guess, nothing="none was found")
    assert not isinstance(stopped.value, Interrupted)
    with pytest.raises(Interrupted) as kept:
        shown_after(interrupted, [1], lambda: guess, nothing="none was found")
    assert kept.value.guess.residual == 0.5
    assert shown_after(lambda: None, found, lambda: guess, nothing=None).seconds is not None


def test_labels_that_do_not_add_up_are_not_called_certain() -> None:
    model, (images, labels) = network(sure=20.0), batch(6, 20, 3)
    seen = observed(model, images, labels)
    layer, size, different = head(model, TASK, seen)
    peel = HeadPeel.of(layer, size, different, nonnegative=True)
    HeadPeeling()._search(peel, seen)
    true = labels.bincount(minlength=20)
    assert torch.equal(_shown(TASK, layer, peel).count_bounds, torch.stack([true, true]))
    peel.labels[0] = int((true == 0).nonzero()[0])  # a false example
    peel.errors = softmax_error(peel.near @ peel.weight.T, peel.labels)
    bounds = _shown(TASK, layer, peel).count_bounds
    assert bool(((bounds[0] <= true) & (true <= bounds[1])).all())


def test_counts_are_those_nearest_to_an_estimate_with_the_right_total() -> None:
    fewest, estimate = torch.tensor([1, 0, 0]), torch.tensor([0.8, 2.2, 1.1])
    assert nearest_counts(estimate, fewest, 4).tolist() == [1, 2, 1]
    assert nearest_counts(estimate, fewest, 1).tolist() == [1, 0, 0]


def test_a_mixture_of_two_images_that_are_nearly_alike_is_not_certified() -> None:
    task = Task(input_shape=TASK.input_shape, num_classes=6)
    torch.manual_seed(8)
    model, (images, labels) = mlp(task, width=60).eval(), batch(5, 6, 8)
    images[1] = images[0] + 1e-3 * torch.rand(images[0].shape, generator=torch.Generator().manual_seed(0))
    peel, _, rows = chained(model, task, images, labels)
    points = peel.whole.first.points(torch.cat([rows, 3 * rows[:1] - 2 * rows[1:2]]) @ peel.weight.T)
    held = peel._clear(points, peel._expected(peel.whole.first.inputs(points)))
    assert held.tolist() == [False, False, True, True, True, False]


def test_noise_moves_what_few_equations_hold() -> None:
    squares = torch.diag_embed(torch.tensor([[1.0, 1e-4], [1.0, 1.0], [1.0, 0.0]], dtype=torch.float64))
    readers = torch.eye(2, dtype=torch.float64).expand(3, -1, -1)
    moved = blur(squares, readers, torch.full((3,), 1e-3, dtype=torch.float64))
    assert moved[0] == pytest.approx(1e-3 * math.sqrt(1 + 1e4))
    assert moved[1] == pytest.approx(1e-3 * math.sqrt(2))
    assert moved[2] > 1e3  # nothing holds it


def test_examples_whose_twin_was_found_or_may_be_missing_are_not_certified() -> None:
    model, (images, labels) = mlp(TASK, width=60), batch(4, 20, seed=3)
    images[1] = (images[0] + 1e-3 * torch.randn(images[0].shape)).clamp(0, 1)
    peel, _, _ = chained(model, TASK, images, labels)
    peel.found = torch.eye(4, dtype=torch.float64)
    peel.errors = torch.eye(4, len(peel.first), dtype=torch.float64) / 4
    peel.certified = [True] * 4
    assert peel.sure().tolist() == [True] * 4
    peel.found[1] = peel.found[0] + 0.05 * peel.found[1]
    assert peel.sure().tolist() == [False, False, True, True]
    peel.found, peel.errors, peel.certified = peel.found[2:3], 1e9 * peel.errors[2:3], [True]
    assert peel.sure().tolist() == [False]  # what is left is faint beside it


def test_bounds_and_labels_go_by_certified_examples_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind noise, peeling finds as many examples as there are, with wrong labels."""
    torch.manual_seed(5)
    model, (images, labels) = mlp(TASK, width=60), batch(4, 20, seed=5)
    seen = observed(model, images, labels)
    true = labels.bincount(minlength=20)
    monkeypatch.setattr(Peel, "sure", lambda peel: torch.zeros(len(peel), dtype=torch.bool))
    blind = Peeling(seed=1).run(model, TASK, [seen])
    plain = count_bounds(model, TASK, seen)
    assert blind.count_bounds is not None
    assert plain is not None
    assert bool((blind.count_bounds[0] <= true).all())
    assert int(blind.count_bounds[0].sum()) <= int(plain[0].sum())

    class Wrong(ILRG):
        def run(self, *_: object) -> fedsim.Reconstruction:
            return fedsim.Reconstruction(
                class_counts=torch.zeros(20, dtype=torch.int64).index_fill(0, torch.tensor([7]), 4)
            )

    for certified, told in ((True, true), (False, Wrong().run().class_counts)):
        chosen = Labels(otherwise=Wrong(), seed=1)
        exact = fedsim.Reconstruction(images=images, class_counts=true, certified=torch.full((4,), certified))
        monkeypatch.setattr(Peeling, "run", lambda *_, guess=exact: guess)
        monkeypatch.setattr(HeadPeeling, "run", lambda *_: fedsim.Reconstruction())
        found = chosen._chosen(model, TASK, [seen], None).class_counts
        assert torch.equal(found, told)


def test_rows_of_even_length_show_examples_that_float32_hides_beside_louder_ones() -> None:
    random = torch.Generator().manual_seed(3)
    errors = torch.randn(4, 30, generator=random) * torch.tensor([1.0, 1.0, 1e-10, 1e-12])[:, None]
    errors *= torch.rand(4, 30, generator=random) < 0.5  # units that are silent for some
    gradient = (errors.T @ torch.randn(4, 20, generator=random)).double()
    assert row_scales(gradient, 4, 2)[1] == 4
    noisy = gradient + 1e-6 * torch.randn(30, 20, generator=random, dtype=torch.float64)
    scales, seen = row_scales(noisy, 4, 2)
    assert seen == 2
    assert bool((scales == 1).all())


def test_the_length_of_an_error_tells_the_label_where_rounding_turns_it() -> None:
    """Of a sure example float32 makes 0 of p_y - 1: the direction is that of the next likely class."""
    random = torch.Generator().manual_seed(1)
    weight = torch.randn(3, 12, generator=random, dtype=torch.float64)
    head = Behind(steps=((Between(modules=(nn.ReLU(),)), weight, torch.tensor([30.0, 9.0, 0.0]).double()),))
    outputs = 0.1 * torch.rand(1, 12, generator=random, dtype=torch.float64)
    chances = head.logits(outputs).softmax(dim=1)
    error = (chances * torch.tensor([0.0, 1.0, 1.0])) @ weight / 4  # of class 0, as a client has it
    labels, copies = read_labels(head, outputs, error, 4)
    assert labels.tolist() == [0]
    assert copies.tolist() == [1]
    columns = torch.linalg.qr(torch.cat([error.T, torch.randn(12, 2, generator=random).double()], dim=1))[0]
    label, step, outside = rounded_label(head, outputs, columns, torch.ones(12, 1).double())
    assert label == 0
    assert abs(step) < 1e-6 * float(chances[0, 1])
    assert outside < 1e-6
    assert rounded_error(head, outputs, label, step)[0].tolist() == pytest.approx(
        (4 * error[0]).tolist(), rel=1e-6
    )


def test_examples_of_a_sure_model_are_peeled_with_their_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    few = Task(input_shape=TASK.input_shape, num_classes=4)
    torch.manual_seed(0)
    model, images = mlp(few, width=60).eval(), (torch.rand(6, *TASK.input_shape) < 0.3).float()
    with torch.no_grad():
        model[-1].weight *= 400.0
        labels = model(images).argmax(dim=1)
        losses = nn.functional.cross_entropy(model(images).double(), labels, reduction="none")
    assert (
        float(losses.max() / losses.min().abs().clamp(min=1e-16)) > 1e7
    )  # what a sum in float32 has no room for
    seen = observed(model, images, labels)
    guess = Peeling().run(model, few, [seen])
    truth = Truth(round=1, client=0, images=images, labels=labels)
    assert torch.equal(guess.class_counts, labels.bincount(minlength=4))
    right = right_certificates(guess, truth)
    assert right is not None
    assert bool(right.all())
    true = labels.bincount(minlength=4)
    unsure = dataclasses.replace(guess, class_counts=None, certified=torch.zeros(6, dtype=torch.bool))
    monkeypatch.setattr(Peeling, "run", lambda *_: unsure)
    monkeypatch.setattr(HeadPeeling, "run", lambda *_: fedsim.Reconstruction())
    assert torch.equal(Labels(otherwise=ILRG()).run(model, few, [seen]).class_counts, true)
    noisy = {name: tensor + 1e-3 * torch.randn_like(tensor) for name, tensor in seen.received.items()}
    wrong = dataclasses.replace(unsure, labels=(labels + 1) % 4)
    monkeypatch.setattr(Peeling, "run", lambda *_: wrong)
    told = Labels(otherwise=ILRG()).run(model, few, [dataclasses.replace(seen, received=noisy)])
    assert not torch.equal(told.class_counts, wrong.labels.bincount(minlength=4))


def test_unseen_examples_are_counted_where_the_model_always_says_the_same() -> None:
    counts = torch.tensor([0, 5, 4])
    always = torch.tensor([9.0, -5.0, -4.0])  # K g: class 0 is predicted for all nine
    assert with_unseen(counts, always, 2).tolist() == [2, 5, 4]
    assert with_unseen(counts, torch.tensor([3.0, -2.0, -1.0]), 2).tolist() == [0, 5, 4]


def test_a_mixture_of_twins_has_the_errors_of_both_and_is_not_alone() -> None:
    torch.manual_seed(3)
    model, (images, labels) = mlp(TASK, width=60), batch(2, 20, seed=3)
    images[1] = images[0] + 1e-3 * torch.randn_like(images[0])
    for label, copies in ((labels[0], 2), ((labels[0] + 1) % 20, 0)):  # twins with one label, or with two
        labels[1] = label
        layers, between = linear_chain(model, TASK, observed(model, images, labels))
        rest, inputs = behind(layers, between), images.flatten(1).double()
        outputs = inputs @ layers[0].weight.T + layers[0].bias
        errors = rest.errors(outputs, labels).detach() / 2
        assert bool(alone(rest, outputs, errors, 2).all())
        mixed = outputs.mean(dim=0, keepdim=True), errors.sum(dim=0, keepdim=True)
        assert not bool(alone(rest, *mixed, 2).any())
        if copies:
            assert read_labels(rest, *mixed, 2)[1].tolist() == [copies]
