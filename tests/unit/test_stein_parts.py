"""The parts of the Stein attacks against numbers that can be checked by hand or by brute force."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim.attacks.privacy.stein.batch import find_span, hidden_moments
from fedsim.attacks.privacy.stein.completion import complete
from fedsim.attacks.privacy.stein.decomposition import (
    decompose,
    diagonalise,
    least_squares,
    misfit,
    parafac_columns,
    powers,
)
from fedsim.attacks.privacy.stein.membership import Columns, separable
from fedsim.attacks.privacy.stein.moments import (
    first_moment,
    leading_subspace,
    moment_noise,
    projected,
    second_times,
    third_times,
    third_unfolded,
)
from fedsim.attacks.privacy.stein.quadrature import (
    best_bias,
    coefficient,
    hermite,
    slope_levels,
    slopes,
    strength,
    usable_orders,
)
from fedsim.attacks.privacy.stein.stein import Stein, plan
from fedsim.attacks.privacy.stein.stein_exact import SteinExact
from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Attack
from fedsim.core.randomness import generator
from fedsim.models.layers import ACTIVATIONS, activation_layer
from fedsim.testing import small_data, small_model


def unit_columns(size: int, seed: int) -> torch.Tensor:
    columns = torch.randn(size, size, generator=generator(seed, "columns"), dtype=torch.float64)
    return columns / columns.norm(dim=0)


def apart(found: torch.Tensor, columns: torch.Tensor) -> float:
    """Largest distance of a true column from the nearest found one, up to sign."""
    return float((1 - (columns.T @ found).abs().amax(1)).abs().max())


def test_hermite_polynomials() -> None:
    z = torch.tensor([-1.5, 0.0, 2.0], dtype=torch.float64)
    assert torch.equal(hermite(0, z), torch.ones(3, dtype=torch.float64))
    assert torch.allclose(hermite(3, z), z**3 - 3 * z)
    assert torch.allclose(hermite(4, z), z**4 - 6 * z**2 + 3)


def test_coefficients_of_polynomials_are_exact() -> None:
    act = activation_layer("square_cube")  # z^2 + z^3 = 1 + 3 He1 + He2 + He3
    expected = (1, 3, 2, 6, 0)  # E[act He_p] = p! times the coefficient
    for order, value in enumerate(expected):
        assert coefficient(act, order, bias=0.0) == pytest.approx(value, abs=1e-9)
    assert coefficient(act, 3, bias=0.0, scale=0.5) == pytest.approx(6 / 8)


def test_steins_lemma_for_relu() -> None:
    relu = activation_layer("relu")
    density = math.exp(-0.125) / math.sqrt(2 * math.pi)
    assert coefficient(relu, 1, bias=0.0) == pytest.approx(0.5, abs=1e-6)  # E relu'
    assert coefficient(relu, 2, bias=0.5) == pytest.approx(density, abs=1e-6)  # E relu'' = density at -0.5
    assert coefficient(relu, 3, bias=0.5) == pytest.approx(-0.5 * density, abs=1e-6)


@given(name=st.sampled_from(["relu", "tanh", "gelu", "sigmoid", "elu"]), bias=st.floats(-1, 1))
@settings(max_examples=30, deadline=None)
def test_strengths_are_shares(name: str, bias: float) -> None:
    total = sum(strength(activation_layer(name), order, bias=bias) ** 2 for order in range(1, 25))
    assert 0.98 < total <= 1 + 1e-9


@pytest.mark.parametrize(
    ("name", "bias", "usable"),
    [
        ("relu", 0.0, (1, 2, 4)),
        ("leaky_relu", 0.0, (1, 2, 4)),
        ("gelu", 0.0, (1, 2, 4)),
        ("softplus", 0.0, (1, 2, 4)),
        ("tanh", 0.0, (1, 3)),
        ("sigmoid", 0.0, (1, 3)),
        ("square", 0.0, (2,)),
        ("linear", 0.0, (1,)),
        ("square_cube", 0.0, (1, 2, 3)),
    ],
)
def test_parity_decides_which_orders_are_usable(name: str, bias: float, usable: tuple[int, ...]) -> None:
    assert usable_orders(activation_layer(name), bias=bias) == usable


@pytest.mark.parametrize("name", sorted(set(ACTIVATIONS) - {"linear", "square"}))
def test_a_bias_makes_second_and_third_order_usable(name: str) -> None:
    act = activation_layer(name)
    assert {2, 3} <= set(usable_orders(act, bias=best_bias(act, (2, 3))))


def test_relu_has_no_fourth_order_at_bias_one() -> None:
    assert 4 not in usable_orders(activation_layer("relu"), bias=1.0)


@pytest.mark.parametrize(("name", "span", "decomposed"), [("relu", 2, 4), ("tanh", 3, 3), ("elu", 2, 3)])
def test_plans_follow_parity(name: str, span: int, decomposed: int) -> None:
    made = plan(activation_layer(name), 0.0, None)
    assert (made.span, made.decomposed) == (span, decomposed)


@pytest.mark.parametrize(
    ("name", "order", "words"),
    [
        ("relu", 3, "order 3 vanish.*usable orders are 1, 2, 4.*attack.bias=0.5"),
        ("square", None, "shows the span"),
        ("linear", None, "shows a linear combination"),
    ],
)
def test_impossible_plans_are_refused_with_the_reason(name: str, order: int | None, words: str) -> None:
    with pytest.raises(FedsimError, match=words):
        plan(activation_layer(name), 0.0, order)


def test_slopes_and_their_levels() -> None:
    z = torch.tensor([[-1.0, 0.3, 2.0]], dtype=torch.float64)
    first, second = slopes(activation_layer("tanh"), z)
    assert torch.allclose(first, 1 - z.tanh() ** 2)
    assert torch.allclose(second, -2 * z.tanh() * (1 - z.tanh() ** 2))
    assert not slopes(activation_layer("relu"), z)[1].any()
    assert slope_levels(activation_layer("relu")) == (0.0, 1.0)
    assert slope_levels(activation_layer("leaky_relu")) == pytest.approx((0.01, 1.0))
    assert slope_levels(activation_layer("elu")) is None
    assert slope_levels(activation_layer("square")) is None


def test_moments_in_chunks_are_those_of_the_definition() -> None:
    random = generator(0)
    weights = torch.randn(50, 3, generator=random, dtype=torch.float64)
    gradients = torch.randn(50, generator=random, dtype=torch.float64)
    eye = torch.eye(3, dtype=torch.float64)

    def units():
        return iter([(weights[:20], gradients[:20]), (weights[20:], gradients[20:])])

    def third(w):
        mixed = torch.einsum("i,jk->ijk", w, eye)
        return torch.einsum("i,j,k->ijk", w, w, w) - mixed - mixed.permute(1, 0, 2) - mixed.permute(1, 2, 0)

    def fourth(w):
        total = torch.einsum("i,j,k,l->ijkl", w, w, w, w)
        letters = "ijkl"
        for a, b in itertools.combinations(range(4), 2):
            c, d = (place for place in range(4) if place not in (a, b))
            spec = f"{letters[a]},{letters[b]},{letters[c]}{letters[d]}->ijkl"
            total = total - torch.einsum(spec, w, w, eye)
        return total + sum(torch.einsum(f"{spec}->ijkl", eye, eye) for spec in ("ij,kl", "ik,jl", "il,jk"))

    pairs = list(zip(gradients, weights, strict=True))
    one = sum(g * w for g, w in pairs) / 50
    two = sum(g * (torch.outer(w, w) - eye) for g, w in pairs) / 50
    three = sum(g * third(w) for g, w in pairs) / 50
    four = sum(g * fourth(w) for g, w in pairs) / 50
    for found, expected in zip(projected(units, eye, 4), (one, two, three, four), strict=True):
        assert torch.allclose(found, expected, atol=1e-12)
    assert torch.allclose(first_moment(units), one)
    assert torch.allclose(second_times(units, eye), two)
    assert torch.allclose(third_times(units, eye, weights[0]), three @ weights[0])
    assert torch.allclose(third_unfolded(units, eye[:, :2]), three[:, :2, :2].flatten(1))
    assert moment_noise(units) == pytest.approx(float(gradients.square().mean()) / 50)


def test_the_leading_subspace_is_by_absolute_eigenvalue() -> None:
    basis = torch.linalg.qr(torch.randn(40, 40, generator=generator(1), dtype=torch.float64))[0]
    values = torch.full((40,), 0.01, dtype=torch.float64)
    values[:3] = torch.tensor([-5.0, 3.0, 1.0])
    matrix = basis * values @ basis.T
    found = leading_subspace(lambda block: matrix @ block, 40, 3, 10, generator(2))
    assert torch.linalg.matrix_norm(found.T @ basis[:, :3], 2) == pytest.approx(1)
    assert float((basis[:, :3] - found @ found.T @ basis[:, :3]).norm()) < 1e-8


@given(size=st.integers(2, 8), seed=st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_noiseless_tensors_decompose(size: int, seed: int) -> None:
    columns = unit_columns(size, seed)
    if float(torch.linalg.cond(columns)) > 50:
        return
    weights = torch.sign(torch.randn(size, generator=generator(seed), dtype=torch.float64))
    stack = (powers(columns, 3) @ weights).view(size, size, size)
    found = diagonalise(stack, None, generator(seed))
    assert apart(found, columns) < 1e-6
    assert misfit(stack, columns) < 1e-9


@pytest.mark.parametrize("order", [3, 4])
def test_the_better_of_two_decompositions_is_taken(order: int) -> None:
    columns = unit_columns(4, 3)
    weights = torch.tensor([1.0, -1.0, 2.0, 0.5], dtype=torch.float64)
    tensor = (powers(columns, order) @ weights).view([4] * order)
    assert apart(decompose(tensor, None, 50, generator(0)), columns) < 1e-8
    assert all(factor.shape == (4, 4) for factor in parafac_columns(tensor, generator(0)))


def test_alternating_least_squares_improves_a_rough_start() -> None:
    columns = unit_columns(5, 4)
    weights = torch.randn(9, 5, generator=generator(5), dtype=torch.float64)
    stack = torch.einsum("kr,ir,jr->kij", weights, columns, columns)
    rough = columns + 0.1 * torch.randn(5, 5, generator=generator(6), dtype=torch.float64)
    better = least_squares(stack, rough / rough.norm(dim=0), 100)
    assert misfit(stack, better) < 0.1 * misfit(stack, rough)


def test_parafac_is_seeded_and_leaves_global_generators_alone() -> None:
    tensor = (powers(unit_columns(3, 7), 3) @ torch.ones(3, dtype=torch.float64)).view(3, 3, 3)
    before = torch.get_rng_state()
    first, second = (parafac_columns(tensor, generator(8)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert torch.equal(before, torch.get_rng_state())


def low_rank(rows: int, columns: int, rank: int, seed: int) -> torch.Tensor:
    random = generator(seed, "low rank")
    left = torch.randn(rows, rank, generator=random, dtype=torch.float64)
    return left @ torch.randn(rank, columns, generator=random, dtype=torch.float64)


def test_a_low_rank_matrix_is_completed_from_its_largest_entries() -> None:
    matrix = low_rank(120, 90, 3, 0)
    kept = torch.where(matrix.abs() >= matrix.abs().median(), matrix, 0.0)
    known = kept != 0
    rows, columns = known.sum(1) >= 9, known.sum(0) >= 9  # in others there is nothing to go by
    gap = (complete(kept, known, 3) - matrix)[rows][:, columns]
    assert float(gap.norm() / matrix.norm()) < 1e-6


def test_the_span_of_equal_inputs_is_smaller() -> None:
    matrix = low_rank(50, 30, 4, 1)
    assert len(find_span(matrix, 6).basis) == 4
    assert find_span(matrix, 4).noise < 1e-10
    noisy = matrix + 0.1 * torch.randn(50, 30, generator=generator(2), dtype=torch.float64)
    assert find_span(noisy, 4).noise > 0.01


def test_units_that_kept_too_little_are_left_out() -> None:
    matrix = low_rank(50, 30, 2, 3)
    matrix[7, 3:] = 0
    span = find_span(matrix, 2)
    assert span.heard.tolist() == [row != 7 for row in range(50)]
    assert len(span.gradient) == 49


def test_silent_units_and_dark_inputs_are_no_holes() -> None:
    matrix = low_rank(50, 30, 2, 4)
    matrix[7], matrix[:, 3] = 0, 0
    span = find_span(matrix, 2)
    assert span.heard.tolist() == [row != 7 for row in range(50)]
    assert span.noise < 1e-10


def test_a_gradient_that_kept_almost_nothing_is_refused() -> None:
    matrix = torch.zeros(50, 30, dtype=torch.float64)
    matrix[3, 4] = matrix[5, 6] = 1.0
    with pytest.raises(FedsimError, match=r"of 50 units kept .* Remedy"):
        find_span(matrix, 4)


def columns_of(activation: str, size: int = 4, units: int = 200, bias: float = 0.5):
    random = generator(11, activation)
    act = activation_layer(activation)
    weights = torch.randn(units, size, generator=random, dtype=torch.float64)
    inputs = torch.randn(size, size, generator=random, dtype=torch.float64)
    inputs = inputs / inputs.norm(dim=1, keepdim=True)
    errors = torch.tensor([1.0, -1.5, 0.7, 2.0], dtype=torch.float64)[:size]
    given = slopes(act, inputs @ weights.T + bias)[0]  # (B, m)
    return Columns.of(weights, (given.T * errors) @ inputs, bias, act), inputs


@pytest.mark.parametrize("activation", ["tanh", "gelu", "softplus", "square_cube"])
def test_true_inputs_are_members_and_near_ones_become_them(activation: str) -> None:
    columns, inputs = columns_of(activation)
    assert float(columns.outside(columns.slopes(inputs)).abs().max()) < 1e-9
    eye = torch.eye(4, dtype=torch.float64)
    near = inputs + 0.1 * torch.randn(4, 4, generator=generator(12), dtype=torch.float64)
    found, residuals = columns.refine(near, eye, 30)
    assert float(torch.cdist(found, inputs).amin(1).max()) < 1e-6  # perhaps another one
    assert float(residuals.max()) < 1e-8


def test_columns_with_a_kink_round_to_true_ones() -> None:
    columns, inputs = columns_of("relu")
    near = inputs + 0.2 * torch.randn(4, 4, generator=generator(13), dtype=torch.float64)
    found, residuals = columns.round(near, 30)
    assert torch.equal(found, columns.slopes(inputs))
    assert float(residuals.max()) < 1e-9


def test_only_patterns_of_some_input_are_separable() -> None:
    columns, inputs = columns_of("relu")
    active = columns.slopes(inputs) > 0
    assert separable(columns.units, 0.5, active[0])
    assert not separable(columns.units, 0.5, active[0] ^ active[1])


def test_regression_gives_the_moments_of_a_polynomial() -> None:
    """Act = z^2 + z^3 has act' = 2 z + 3 z^2, whose Hermite series ends at order two."""
    columns, inputs = columns_of("square_cube", bias=0.0)
    given = columns.slopes(inputs)
    second, third = hidden_moments(columns.units, given.T @ inputs)
    assert torch.allclose(second, 2 * inputs.T @ inputs, atol=0.2)
    assert torch.allclose(third, 3 * torch.einsum("ia,ib,ic->abc", inputs, inputs, inputs), atol=0.2)


@pytest.mark.parametrize("attack", [Stein(), Stein(bias=0.7), SteinExact()])
def test_crafted_units_are_gaussian_and_alike_but_for_their_draws(attack: Attack) -> None:
    task, model = small_data().task, small_model("two_layer", width=300)
    honest = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    sent, later = (attack.craft(model, task, round, honest) for round in (1, 2))
    hidden, output = sent["hidden1.weight"], sent["output.weight"]
    assert not torch.equal(hidden, later["hidden1.weight"])
    drawn = hidden / hidden.std()
    assert float(drawn.mean()) == pytest.approx(0, abs=0.03)
    assert float(drawn.pow(4).mean()) == pytest.approx(3, rel=0.1)  # uniform: 1.8
    assert len(sent["hidden1.bias"].unique()) == 1
    assert torch.equal(output, output[:, :1].expand_as(output))
    assert len(output[:, 0].unique()) == task.num_classes
    if getattr(attack, "bias", None) is not None:
        assert float(sent["hidden1.bias"][0]) == pytest.approx(attack.bias)
