"""Where the parts of the Stein attacks end: what they refuse, limits, what is left out."""

import dataclasses
import math

import pytest
import torch
from small_head import TASK, known, played
from torch import nn
from torch.nn import functional

from fedsim.attacks.privacy import claims
from fedsim.attacks.privacy.stein import stein, stein_exact
from fedsim.attacks.privacy.stein.batch import Batch, _sane, find_span
from fedsim.attacks.privacy.stein.decomposition import diagonalise, least_squares, misfit, parafac_columns
from fedsim.attacks.privacy.stein.head import find_head
from fedsim.attacks.privacy.stein.membership import Columns
from fedsim.attacks.privacy.stein.quadrature import best_bias, coefficient, slope_levels, strength
from fedsim.attacks.privacy.stein.stein import Stein
from fedsim.attacks.privacy.stein.stein_exact import SteinExact, label_shares, shares_of_errors, unexplained
from fedsim.core.errors import FedsimError
from fedsim.core.randomness import generator
from fedsim.core.training import weights_of
from fedsim.models.layers import activation_layer
from fedsim.testing import small_model


def test_a_plan_that_cannot_work_is_refused_before_weights_are_sent() -> None:
    network = small_model("two_layer", width=8, activation="relu")
    with pytest.raises(FedsimError, match="moments of order 3 vanish"):
        Stein(order=3, bias=0.0).craft(network, TASK, 1, weights_of(network))
    with pytest.raises(FedsimError, match="ends in two linear layers"):
        find_head(small_model("softmax"), TASK)
    act = activation_layer("tanh")
    assert best_bias(act, (2, 3)) == best_bias(act, (2, 3), scale=1.0)
    assert best_bias(act, (2, 3)) != best_bias(act, (2, 3), scale=2.0)


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_an_input_of_zeros_is_in_the_bias_alone(activation: str) -> None:
    truth = known(activation, often=(1, 1, 1))
    batch = Batch.of(truth.head, truth.form, 3, 2.0)
    batch.columns = batch.whole.slopes(truth.inputs @ batch.basis.T / 2.0)
    batch.bias_gradient = batch.bias_gradient + 0.5  # the same everywhere: its column is
    assert torch.allclose(batch.errors() * batch.scale, truth.errors)


def test_smooth_inputs_are_finished_on_all_units_and_kinked_ones_stay() -> None:
    for activation in ("tanh", "relu"):
        truth = known(activation, often=(1, 1, 1))
        batch = Batch.of(truth.head, truth.form, 3, 2.0)
        exact = truth.inputs @ batch.basis.T / 2.0
        batch.points = exact + 1e-3
        batch.columns = batch.whole.slopes(batch.points)
        batch.finish()
        if activation == "tanh":
            assert torch.allclose(batch.points, exact, atol=1e-8)
            assert torch.allclose(batch.columns, batch.whole.slopes(exact), atol=1e-8)
        else:
            assert torch.equal(batch.points, exact + 1e-3)


def test_a_batch_of_noise_is_held_to_no_more_than_the_loosest_tolerance() -> None:
    truth = known("tanh", often=(1, 1, 1))
    noise = torch.randn(truth.head.weight_gradient.shape, generator=torch.Generator().manual_seed(1)).double()
    size = float(truth.head.weight_gradient.norm() / noise.norm())
    tolerances = []
    for share in (0.0, 1e-3, 10.0):
        noisy = truth.head.weight_gradient + share * size * noise
        head = dataclasses.replace(truth.head, weight_gradient=noisy)
        tolerances.append(Batch.of(head, truth.form, 3, 2.0).tolerance)
    assert tolerances[0] == 1e-4
    assert 1e-4 < tolerances[1] < 0.3
    assert tolerances[2] == 0.3
    span = find_span(torch.ones(5, 4).double(), 1)  # a batch of one
    assert (len(span.basis), int(span.heard.sum())) == (1, 5)
    with pytest.raises(FedsimError, match="zero everywhere: it spans nothing"):
        find_span(torch.zeros(5, 4).double(), 0)
    few = known("tanh", units=5, often=(1, 1, 1))
    with pytest.raises(FedsimError, match="5 units of layer 'hidden' were heard of: expected at least 6"):
        Batch.of(few.head, few.form, 3, 2.0)
    enough = known("tanh", units=6, often=(1, 1, 1))
    assert Batch.of(enough.head, enough.form, 3, 2.0).size == 3


def test_moments_start_near_the_inputs() -> None:
    truth = known("softplus", units=3000, often=(1, 1, 1))
    batch = Batch.of(truth.head, truth.form, 3, 2.0)
    exact = truth.inputs @ batch.basis.T / 2.0
    starts = batch.from_moments(batch.left(), generator(4))
    cosines = functional.normalize(starts, dim=1) @ functional.normalize(exact, dim=1).T
    assert float(cosines.amax(0).min()) > 0.9
    norms = starts.norm(dim=1)
    assert bool(((norms >= 0.5 - 1e-9) & (norms <= 2 + 1e-9)).all())
    batch.points, batch.columns = exact[:1], batch.whole.slopes(exact[:1])
    rest = batch.from_moments(batch.left(), generator(4))  # what was found is projected out
    left = batch.left()
    assert torch.allclose(rest @ left.T @ left, rest)
    batch.ratio = 0.0
    assert batch.from_moments(left, generator(4)).shape == (0, 3)


def test_starts_anywhere_lead_to_inputs_or_are_told_from_them() -> None:
    truth = known("tanh", often=(1, 1, 1), units=60)
    batch = Batch.of(truth.head, truth.form, 3, 2.0)
    starts = 2 * torch.randn(60, 3, generator=generator(6), dtype=torch.float64)
    points, residuals = batch.whole.refine(starts, torch.eye(3, dtype=torch.float64), 20)
    members = residuals < 1e-8
    assert int(members.sum()) >= 10
    exact = truth.inputs @ batch.basis.T / 2.0
    assert float(torch.cdist(points[members], exact).amin(1).max()) < 1e-6
    assert float(residuals[~members].min()) > 1e-3


def test_columns_of_one_slope_are_nobodys_unless_there_is_one_input() -> None:
    units = torch.tensor([[1.0, 0.2], [0.9, -0.1], [1.1, 0.3]], dtype=torch.float64)
    act = activation_layer("relu")
    everywhere = torch.tensor([[5.0, 0.0], [-5.0, 0.0]], dtype=torch.float64)  # all units active, or none
    given = torch.tensor([[1.0, 0.1], [1.0, 0.4], [1.0, 0.2]], dtype=torch.float64)
    columns, residuals = Columns.of(units, given, 0.5, act).round(everywhere, 1)
    assert residuals.tolist() == [math.inf, math.inf]
    assert columns[0].tolist() == [1, 1, 1]
    one = Columns.of(units[:, :1], given[:, :1], 0.5, act)
    columns, residuals = one.round(everywhere[:1, :1], 5)
    assert columns.tolist() == [[1, 1, 1]]
    assert residuals.tolist() == pytest.approx([0], abs=1e-9)


def test_vectors_of_either_sign_are_averaged() -> None:
    columns = torch.linalg.qr(torch.randn(4, 4, generator=generator(9), dtype=torch.float64))[0]
    stack = torch.einsum("kr,ir,jr->kij", torch.ones(3, 4, dtype=torch.float64), columns, columns)
    assert torch.allclose(least_squares(stack, columns, 0), columns)


def test_the_bias_is_the_first_unless_another_is_clearly_better() -> None:
    chosen = {name: best_bias(activation_layer(name), (2, 3)) for name in ("relu", "gelu", "tanh", "elu")}
    assert chosen == {"relu": -1.0, "gelu": -1.0, "tanh": 0.5, "elu": 0.5}
    assert best_bias(activation_layer("square_cube"), (2, 3)) == 0.5  # .48 is not much better than .38
    assert best_bias(activation_layer("tanh"), (2, 3), scale=0.5) == 1.5


def test_slopes_with_another_kink_are_refused_as_far_as_units_go() -> None:
    def bent(low: float, high: float, slope: float):
        return lambda z: z + slope * (functional.relu(z - low) - functional.relu(z - high))

    for low, high in ((0.1, 0.2), (-0.2, -0.1), (19.9, 30.0)):  # a narrow step, and one at the end
        with pytest.raises(FedsimError, match="kinks elsewhere than at zero"):
            slope_levels(bent(low, high, 1.0))
    assert slope_levels(bent(20.5, 30.0, 1.0)) == (1.0, 1.0)  # where no unit is
    assert slope_levels(functional.leaky_relu) == (0.01, 1.0)


@pytest.mark.parametrize(
    ("activation", "words"), [("linear", "a linear activation"), ("square", "the activation is quadratic")]
)
def test_activations_that_show_no_inputs_are_refused_when_crafting_and_when_reading(
    activation: str, words: str, monkeypatch
) -> None:
    network = small_model("two_layer", width=40, activation=activation)
    with pytest.raises(FedsimError, match=words):
        SteinExact().craft(network, TASK, 1, weights_of(network))
    monkeypatch.setattr(stein_exact, "_check", lambda *given: None)
    case = played(SteinExact(), width=40, activation=activation)
    monkeypatch.undo()
    with pytest.raises(FedsimError, match=words):
        SteinExact().run(case.model, TASK, [case.seen])


def test_a_hidden_layer_without_a_bias_is_refused() -> None:
    plain = nn.Sequential(nn.Flatten(), nn.Linear(64, 8, bias=False), nn.Tanh(), nn.Linear(8, 4))
    task = dataclasses.replace(TASK, mean=(0.0,), std=(1.0,))
    with pytest.raises(FedsimError, match="has no bias"):
        find_head(plain, task)


def test_contradictions_are_shares_of_units() -> None:
    truth = known("relu", often=(1, 1, 1))
    batch = Batch.of(truth.head, truth.form, 3, 2.0)
    batch.columns = batch.whole.slopes(truth.inputs @ batch.basis.T / 2.0)
    batch.points = batch.columns[:, :3]
    far = (batch.inputs() @ batch.whole.units.T + batch.whole.bias).abs().argmax(1)
    exact, batch.inputs = batch.inputs(), lambda: exact  # as they are, whatever the columns say
    batch.columns[0, far[0]] = 1 - batch.columns[0, far[0]]
    assert batch.contradictions().tolist() == pytest.approx([1 / int(batch.heard.sum()), 0, 0])


def test_inactive_units_count_in_what_is_unexplained() -> None:
    truth = known("relu", often=(1, 1))
    distances = truth.inputs @ truth.head.weight.T + truth.head.bias
    asleep = int((distances < -0.05).all(0).nonzero()[0, 0])
    wrong = truth.head.weight_gradient.clone()
    wrong[asleep] = 10.0
    broken = dataclasses.replace(truth.head, weight_gradient=wrong)
    assert unexplained(truth.form, broken, truth.inputs, truth.counts) > 0.9
    bias = truth.head.bias_gradient.clone()
    bias[asleep] = 10.0
    broken = dataclasses.replace(truth.head, bias_gradient=bias)
    assert unexplained(truth.form, broken, truth.inputs, truth.counts) > 0.9


def test_rows_that_completion_blew_up_are_not_trusted() -> None:
    known_entries = torch.tensor([[True, True, False, False], [True, False, False, False]])
    rows = 3 * torch.tensor([[1.0, 1.0, 1.9, 1.9], [1.0, 1.9, 1.9, 1.9]]).double()
    assert _sane(rows, known_entries).tolist() == [True, True]
    rows[0, 2:], rows[1, 1:] = 6.3, 6.3  # means, whatever the number of entries
    assert _sane(rows, known_entries).tolist() == [False, False]
    assert _sane(rows, known_entries | True).tolist() == [True, True]


def test_too_many_copies_are_refused_before_memory_is_taken(monkeypatch) -> None:
    truth = known("tanh", often=(1, 1, 1))
    monkeypatch.setattr(claims, "MOST_NUMBERS", 3 * 5 * 3 - 1)
    with pytest.raises(FedsimError, match="3 inputs up to 3 times"):
        shares_of_errors(truth.form, truth.head, truth.inputs, truth.errors, 3)


def test_shares_of_noisy_gradients_are_not_negative() -> None:
    truth = known("tanh", often=(1, 1, 1))
    noise = torch.randn(truth.head.output_gradient.shape, generator=torch.Generator().manual_seed(2)).double()
    noisy = dataclasses.replace(truth.head, output_gradient=truth.head.output_gradient + 0.05 * noise)
    found = label_shares(truth.form, noisy, truth.inputs, 3)
    assert float(found.min()) >= 0
    assert float(found.sum()) == pytest.approx(3)


def test_second_opinions_are_unit_vectors() -> None:
    tensor = torch.einsum("ir,jr,kr->ijk", *[torch.randn(3, 3, generator=generator(1)).double()] * 3)
    for factor in parafac_columns(tensor, generator(2)):
        assert torch.allclose(factor.norm(dim=0), torch.ones(3).double())


def test_even_moments_alone_leave_the_sign_open() -> None:
    weights = torch.randn(400, 3, generator=generator(3)).double()
    gradients = torch.cos(2 * weights[:, 0])

    def units():
        return iter([(weights, gradients)])

    found = stein.estimate(
        units, lambda z: torch.cos(2 * z), 0.0, inputs=3, size=1, iterations=1, random=generator(4)
    )
    assert not found.signed
    assert (float(stein.NORMS[0]), float(stein.NORMS[-1])) == (pytest.approx(0.05), 4.0)


def test_starts_need_second_and_third_moments() -> None:
    truth = known("softplus", often=(1, 1, 1))
    batch = Batch.of(truth.head, truth.form, 3, 2.0)
    two, three = (coefficient(truth.form.act, order, bias=0.4, scale=batch.scale) for order in (2, 3))
    assert batch.ratio == pytest.approx(2 * two / three)
    even = dataclasses.replace(truth.form, act=torch.cos)
    assert Batch.of(dataclasses.replace(truth.head, bias=0.0), even, 3, 2.0).ratio == 0.0
    assert strength(torch.zeros_like, 2, bias=0.5) == 0.0  # a unit that never answers


def test_the_head_is_the_last_two_of_many_layers() -> None:
    form = find_head(small_model("fcn3"), TASK)
    linear = [name for name, layer in small_model("fcn3").named_modules() if isinstance(layer, nn.Linear)]
    assert len(linear) > 2
    assert [form.hidden, form.output] == linear[-2:]
    assert not form.takes_images


def test_a_misfit_is_relative() -> None:
    columns = torch.eye(2).double()
    stack = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]]).double()
    assert misfit(stack, columns) == pytest.approx(math.sqrt(0.5))  # half of it is off the diagonal
    assert misfit(7 * stack, columns) == pytest.approx(math.sqrt(0.5))


def test_inputs_that_explain_everything_leave_nothing() -> None:
    weights, inputs = (torch.randn(number, 3, generator=generator(number)).double() for number in (40, 2))
    gradients = torch.tanh(weights @ inputs.T + 0.3).sum(1)
    found = stein.explained(lambda: iter([(weights, gradients)]), inputs, torch.tanh, 0.3)
    assert found == pytest.approx(0, abs=1e-6)


def test_a_reference_matrix_tells_common_vectors_by_itself() -> None:
    random = generator(12)
    columns = functional.normalize(torch.randn(4, 4, generator=random).double(), dim=0)
    weights, level = (
        torch.randn(5, 4, generator=random).double(),
        torch.tensor([3.0, -1.0, 2.0, 0.5]).double(),
    )
    stack = torch.einsum("kr,ir,jr->kij", weights, columns, columns)
    found = diagonalise(stack, (columns * level) @ columns.T, generator(13))
    assert float((columns.T @ found).abs().amax(1).min()) > 1 - 1e-9
