"""What the exact Stein attack reads from a gradient, against batches that are known."""

import dataclasses
import itertools
import math

import pytest
import torch
from small_head import CLASSES, Known, known
from torch import Tensor, nn
from torch.nn import functional

from fedsim.attacks.privacy.stein.batch import Batch
from fedsim.attacks.privacy.stein.head import (
    LEVEL,
    PROBES,
    Form,
    class_levels,
    craft_head,
    find_head,
    input_norm,
    read_head,
)
from fedsim.attacks.privacy.stein.membership import Columns
from fedsim.attacks.privacy.stein.quadrature import best_bias
from fedsim.attacks.privacy.stein.stein import (
    Stein,
)
from fedsim.attacks.privacy.stein.stein_exact import (
    SteinExact,
    label_shares,
    shares_of_errors,
    unexplained,
    whole_shares,
)
from fedsim.core.errors import FedsimError
from fedsim.core.randomness import generator
from fedsim.core.types import Observation
from fedsim.models.last_linear import layer_inputs
from fedsim.models.layers import activation_layer
from fedsim.testing import small_data, small_model


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("often", [(1, 1, 1), (2, 1, 3)])
def test_labels_follow_from_inputs(activation: str, often: tuple[int, ...]) -> None:
    truth = known(activation, often=often, seed=sum(often))
    size = sum(often)
    assert torch.allclose(
        label_shares(truth.form, truth.head, truth.inputs, size), truth.counts.double(), atol=1e-6
    )
    found = shares_of_errors(truth.form, truth.head, truth.inputs, truth.errors, size)
    assert torch.equal(found, truth.counts.double())
    assert torch.equal(whole_shares(truth.counts + 0.2, size), truth.counts)


def test_shares_of_a_clipped_gradient_still_add_up() -> None:
    truth = known("tanh", often=(1, 2))
    half = dataclasses.replace(truth.head, output_gradient=truth.head.output_gradient / 2)
    found = label_shares(truth.form, half, truth.inputs, 3)
    assert float(found.sum()) == pytest.approx(3)
    assert torch.equal(found.argmax(1), truth.labels)


def test_classes_with_too_few_entries_are_not_fitted() -> None:
    truth = known("tanh", often=(1, 1, 1))
    gradient = truth.head.output_gradient.clone()
    gradient[0, 2 * 3 :] = 0  # two entries for each input are enough
    enough = dataclasses.replace(truth.head, output_gradient=gradient)
    assert torch.allclose(label_shares(truth.form, enough, truth.inputs, 3), truth.counts.double(), atol=1e-4)
    gradient = torch.zeros_like(gradient)
    nothing = dataclasses.replace(truth.head, output_gradient=gradient)
    found = label_shares(truth.form, nothing, truth.inputs, 3)
    assert torch.equal(found, torch.full_like(found, 1 / CLASSES))


def test_whole_shares_are_the_nearest_that_leave_no_input_out() -> None:
    random = generator(5, "shares")
    for size in (3, 4, 5):
        shares = torch.rand(3, 2, generator=random, dtype=torch.float64)
        shares = shares * size / shares.sum()
        found = whole_shares(shares, size)
        assert int(found.sum()) == size
        sure = functional.one_hot(shares.argmax(1), 2)
        options = [
            sure + torch.tensor(extra).view(3, 2)
            for extra in itertools.product(range(size - 2), repeat=6)
            if sum(extra) == size - 3
        ]
        nearest = min(options, key=lambda counts: float((counts - shares).square().sum()))
        assert torch.equal(found, nearest)


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_what_the_true_batch_leaves_unexplained_is_nothing(activation: str) -> None:
    truth = known(activation)
    assert unexplained(truth.form, truth.head, truth.inputs, truth.counts) < 1e-9
    third = dataclasses.replace(truth.head, weight_gradient=truth.head.weight_gradient / 3)
    assert unexplained(truth.form, third, truth.inputs, truth.counts) < 1e-9  # a client may have clipped
    for part in ("weight_gradient", "bias_gradient", "output_gradient"):
        received = getattr(truth.head, part)
        turned = received.flatten().roll(1).view_as(received)
        wrong = dataclasses.replace(truth.head, **{part: turned})
        cosine = float((turned * received).sum() / received.square().sum())
        given = unexplained(truth.form, wrong, truth.inputs, truth.counts)
        assert given == pytest.approx(math.sqrt(1 - cosine**2), rel=0.2)
    holes = truth.head.weight_gradient.clone()
    holes[::2] = 0  # unknown, not wrong
    assert (
        unexplained(
            truth.form, dataclasses.replace(truth.head, weight_gradient=holes), truth.inputs, truth.counts
        )
        < 1e-9
    )


def test_units_at_the_kink_itself_are_left_out() -> None:
    truth = known("relu", often=(1, 1))
    weight = truth.head.weight.clone()
    weight[3] -= (
        (weight[3] @ truth.inputs[0] + truth.head.bias) / truth.inputs[0].square().sum() * truth.inputs[0]
    )
    wrong = truth.head.weight_gradient.clone()
    inside = unexplained(
        truth.form, dataclasses.replace(truth.head, weight=weight), truth.inputs, truth.counts
    )
    wrong[3] = 100.0
    broken = dataclasses.replace(truth.head, weight=weight, weight_gradient=wrong)
    assert unexplained(truth.form, broken, truth.inputs, truth.counts) == pytest.approx(inside)
    assert (
        unexplained(
            truth.form, dataclasses.replace(truth.head, weight_gradient=wrong), truth.inputs, truth.counts
        )
        > 0.9
    )


def test_the_expected_norm_of_features_is_measured_on_noise() -> None:
    data, model = small_data(), small_model("fcn3")
    weights = {name: 1.5 * parameter.detach() for name, parameter in model.named_parameters()}
    form = find_head(model, data.task)
    assert not form.takes_images
    noise = torch.randn(PROBES, *data.task.input_shape, generator=torch.Generator().manual_seed(0))
    images = (noise * data.task.std[0] + data.task.mean[0]).clamp(0, 1)
    features, _ = layer_inputs(model, form.hidden, weights, images)
    assert input_norm(model, data.task, form, weights) == pytest.approx(float(features.norm(dim=1).mean()))
    nothing = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
    with pytest.raises(FedsimError, match="nothing but zeros"):
        input_norm(model, data.task, form, nothing)
    shallow = small_model("two_layer")
    own = {name: parameter.detach() for name, parameter in shallow.named_parameters()}
    form = find_head(shallow, data.task)
    assert form.takes_images
    assert input_norm(shallow, data.task, form, own) == pytest.approx(math.prod(data.task.input_shape) ** 0.5)


def sent_and_received(units: int, **changed: Tensor) -> tuple[Form, Observation]:
    truth = known("tanh", units=units)
    honest = {
        "hidden.weight": truth.head.weight.float(),
        "hidden.bias": torch.zeros(units),
        "output.weight": torch.randn(CLASSES, units),
        "output.bias": torch.ones(CLASSES),
    }
    crafted = craft_head(truth.form, honest, norm=4.0, scale=0.5, bias=0.4, random=generator(1))
    received = {
        "hidden.weight": truth.head.weight_gradient.float(),
        "hidden.bias": truth.head.bias_gradient.float(),
        "output.weight": truth.head.output_gradient.float(),
        "output.bias": torch.ones(CLASSES),
    }
    sent = crafted | {name: tensor for name, tensor in changed.items() if name in crafted}
    return truth.form, Observation(
        round=1,
        client=0,
        sent=sent,
        received=received | changed.get("received", {}),
        kind="gradient",
        num_examples=3,
    )


@pytest.mark.parametrize("units", [1, 400])
def test_what_was_crafted_is_read_back(units: int) -> None:
    form, seen = sent_and_received(units)
    head = read_head(form, seen)
    assert head.bias == pytest.approx(0.4)
    assert torch.allclose(head.levels, LEVEL * class_levels(CLASSES) / units, rtol=1e-6)
    assert torch.equal(head.weight, seen.sent["hidden.weight"])
    assert not seen.sent["output.bias"].any()
    if units > 1:
        assert float(head.weight.std()) == pytest.approx(0.5 / 4, rel=0.05)
    step = dataclasses.replace(seen, kind="update", local_steps=1, learning_rate=0.5)
    for name in ("weight_gradient", "bias_gradient", "output_gradient"):
        assert torch.allclose(getattr(read_head(form, step), name), -2 * getattr(head, name))
    with pytest.raises(FedsimError, match="expected one local step, got 2"):
        read_head(form, dataclasses.replace(step, local_steps=2))


def test_weights_of_others_and_silent_layers_are_refused() -> None:
    form, seen = sent_and_received(4)
    for name, place in (("output.weight", (2, 1)), ("hidden.bias", 1)):
        sent = {key: tensor.clone() for key, tensor in seen.sent.items()}
        sent[name][place] += 1
        with pytest.raises(FedsimError, match="do not hold the weights"):
            read_head(form, dataclasses.replace(seen, sent=sent))
    for name in ("hidden.weight", "output.weight"):
        received = dict(seen.received) | {name: torch.zeros_like(seen.received[name])}
        with pytest.raises(FedsimError, match="zero everywhere"):
            read_head(form, dataclasses.replace(seen, received=received))
    sent = dict(seen.sent) | {"output.weight": torch.full_like(seen.sent["output.weight"], 0.25)}
    with pytest.raises(FedsimError, match="equal output weights"):
        read_head(form, dataclasses.replace(seen, sent=sent))


@pytest.mark.parametrize("activation", ["relu", "tanh", "square_cube"])
def test_the_bias_that_is_sent_suits_second_and_third_moments(activation: str) -> None:
    task, model = small_data().task, small_model("two_layer", width=8, activation=activation)
    honest = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    act = activation_layer(activation)
    sent = Stein().craft(model, task, 1, honest)
    assert float(sent["hidden1.bias"][0]) == pytest.approx(best_bias(act, (2, 3)))
    exact = SteinExact(scale=0.8).craft(model, task, 1, honest)
    wanted = 0.4 if activation == "relu" else best_bias(act, (2, 3), scale=0.8)
    assert float(exact["hidden1.bias"][0]) == pytest.approx(wanted)


def batch_of(truth: Known) -> Batch:
    return Batch.of(truth.head, truth.form, len(truth.inputs), 2.0)


def test_random_starts_have_a_possible_size_and_lie_in_what_is_left(monkeypatch) -> None:
    seen = []
    monkeypatch.setattr(
        Columns, "round", lambda self, points, steps: (seen.append(points), (points, points[:, 0] + 9))[1]
    )
    batch = batch_of(known("relu"))
    batch.search(50, generator(2), 1.0)
    norms = seen[0][-50:].norm(dim=1)
    assert 0.5 <= float(norms.min()) < 0.6
    assert 1.4 < float(norms.max()) <= 1.5


@pytest.mark.parametrize("activation", ["tanh", "relu", "softplus"])
def test_found_columns_give_errors_sources_and_inputs(activation: str) -> None:
    truth = known(activation, often=(1, 1, 1))
    batch = batch_of(truth)
    coordinates = truth.inputs @ batch.basis.T / 2.0
    assert torch.allclose(coordinates @ batch.basis * 2.0, truth.inputs)
    batch.columns, batch.points = batch.whole.slopes(coordinates), coordinates
    assert torch.allclose(batch.errors() * batch.scale, truth.errors)
    sources = truth.errors[:, None] / batch.scale * coordinates * 2.0
    assert torch.allclose(batch.sources(), sources)
    batch.points = -coordinates  # where both signs have the same column
    expected = coordinates
    assert torch.allclose(batch.inputs(), expected)
    if activation == "relu":
        assert not batch.contradictions().any()
    assert batch.left().shape == (0, 3)
    batch.columns, batch.points = batch.columns[:1], coordinates[:1]
    left = batch.left()
    for row in coordinates[1:]:
        assert torch.allclose(row @ left.T @ left, row)


def test_a_guess_is_looked_for_even_with_few_starts(caplog) -> None:
    truth = known("tanh", units=20, often=(1, 1, 1, 1))
    batch = batch_of(truth)
    batch.tolerance = 0.0  # nothing is certain
    SteinExact(starts=1)._search(batch, generator(3))
    assert batch.guessed
    assert "4 of 4 inputs are no more than guesses" in caplog.text
    assert len(batch.columns) == 4


def test_an_activation_across_units_is_no_head() -> None:
    task, model = small_data().task, small_model("two_layer", width=8)
    names = [name for name, module in model.named_children() if "activation" in name]
    for across in (nn.Softmax(dim=1), nn.LayerNorm(8, elementwise_affine=False)):
        setattr(model, names[0], across)
        with pytest.raises(FedsimError, match="acts on every unit alone"):
            find_head(model, task)
