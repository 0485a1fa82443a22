"""The Stein attack's moments against slow truths: explicit sums, regressions and quadrature."""

import dataclasses
import itertools
import math

import pytest
import torch
from small_head import CLASSES, known

from fedsim.attacks.privacy.stein import batch as batch_module
from fedsim.attacks.privacy.stein.batch import KNOWN, RIDGE, find_span, hidden_moments
from fedsim.attacks.privacy.stein.decomposition import powers
from fedsim.attacks.privacy.stein.head import (
    class_levels,
    denormalised,
)
from fedsim.attacks.privacy.stein.quadrature import coefficient, hermite
from fedsim.attacks.privacy.stein.stein import (
    NORMS,
    SPREAD,
    Estimate,
    _table,
    _units,
    estimate,
    explained,
    plan,
    sizes,
    upright,
)
from fedsim.core.errors import FedsimError
from fedsim.core.randomness import generator
from fedsim.core.types import Task
from fedsim.models.layers import activation_layer


def test_regression_is_ridge_regression_on_hermite_polynomials() -> None:
    random = generator(3, "regression")
    units = torch.randn(80, 3, generator=random, dtype=torch.float64)
    gradient = torch.randn(80, 3, generator=random, dtype=torch.float64)
    pairs = [(a, b) for a in range(3) for b in range(a, 3)]
    columns = [torch.ones(80), *units.T, *(units[:, a] * units[:, b] - float(a == b) for a, b in pairs)]
    features = torch.stack([column.double() for column in columns], dim=1)
    rows = torch.cat([features, math.sqrt(RIDGE * 80) * torch.eye(10, dtype=torch.float64)])
    target = torch.cat([gradient, torch.zeros(10, 3, dtype=torch.float64)])
    fitted = torch.linalg.lstsq(rows, target).solution
    second, third = hidden_moments(units, gradient)
    assert torch.allclose(second, (fitted[1:4] + fitted[1:4].T) / 2)
    full = torch.zeros(3, 3, 3, dtype=torch.float64)
    for (a, b), row in zip(pairs, fitted[4:], strict=True):
        full[a, b] += row / 2
        full[b, a] += row / 2
    expected = sum(full.permute(order) for order in itertools.permutations(range(3))) / 6
    assert torch.allclose(third, expected)


def test_too_many_examples_have_no_moments(monkeypatch) -> None:
    units = torch.ones(4, 3, dtype=torch.float64)
    for name, most in (("LARGEST", 9), ("LARGEST", 10)):
        monkeypatch.setattr(batch_module, name, most)
        second, third = hidden_moments(units, units)
        assert bool(second.any()) == (most == 10)
        assert third.shape == ((3,) * 3 if most == 10 else (0,) * 3)
    monkeypatch.setattr(batch_module.claims, "MOST_NUMBERS", 39)
    assert not hidden_moments(units, units)[0].any()


def test_a_unit_must_have_kept_three_entries_for_each_example() -> None:
    random = generator(4, "kept")
    left = torch.randn(40, 2, generator=random, dtype=torch.float64)
    matrix = left @ torch.randn(2, 30, generator=random, dtype=torch.float64)
    assert KNOWN == 3
    order = matrix.abs().argsort(dim=1, descending=True)
    matrix[3, order[3, 6:]] = 0
    matrix[5, order[5, 5:]] = 0
    heard = find_span(matrix, 2).heard
    assert heard.tolist() == [row != 5 for row in range(40)]


def test_noise_of_a_span_is_its_first_superfluous_singular_value() -> None:
    random = generator(6, "span")
    left = torch.linalg.qr(torch.randn(20, 4, generator=random, dtype=torch.float64))[0]
    right = torch.linalg.qr(torch.randn(9, 4, generator=random, dtype=torch.float64))[0]
    matrix = left * torch.tensor([8.0, 4.0, 2.0, 0.5], dtype=torch.float64) @ right.T
    for wide in (matrix, matrix.T):
        assert find_span(wide, 3).noise == pytest.approx(0.25)
    found = find_span(matrix, 3).basis
    assert torch.allclose(found @ found.T, torch.eye(3, dtype=torch.float64), atol=1e-9)
    assert float((right[:, :3].T @ found.T).det().abs()) == pytest.approx(1)


def test_what_inputs_explain_is_what_regression_leaves() -> None:
    random = generator(7, "explained")
    act, bias = activation_layer("tanh"), 0.3
    weights = torch.randn(50, 4, generator=random, dtype=torch.float64)
    gradients = torch.randn(50, generator=random, dtype=torch.float64) + 1
    inputs = torch.randn(3, 4, generator=random, dtype=torch.float64)

    def units():
        return iter([(weights[:20], gradients[:20]), (weights[20:], gradients[20:])])

    values = act(weights @ inputs.T + bias)
    levels = torch.linalg.lstsq(values, gradients[:, None]).solution[:, 0]
    left = (gradients - values @ levels).square().sum() / (50 - 3)
    expected = math.sqrt(left / gradients.var(correction=0))
    assert explained(units, inputs, act, bias) == pytest.approx(expected)
    assert explained(lambda: iter([(weights, torch.ones(50))]), inputs, act, bias) == 1.0


def test_lengths_are_read_from_a_table_of_moments() -> None:
    act, bias = activation_layer("softplus"), 0.5
    for order in (1, 2, 3):
        table = _table(act, bias, order)
        for place in (0, 8, 80, 392):  # knots of the interpolation
            exact = coefficient(act, order, bias=bias, scale=float(NORMS[place])) / math.sqrt(
                math.factorial(order)
            )
            assert float(table[place]) == pytest.approx(exact, rel=1e-6)
        between = coefficient(act, order, bias=bias, scale=float(NORMS[100])) / math.sqrt(
            math.factorial(order)
        )
        assert float(table[100]) == pytest.approx(between, rel=1e-2)


@pytest.mark.parametrize("lengths", [(0.7, 1.3), (-0.7, 1.1)])
def test_signed_lengths_come_from_all_usable_moments(lengths: tuple[float, float]) -> None:
    act, bias, usable = activation_layer("softplus"), 0.5, (1, 2, 3)
    directions = torch.linalg.qr(torch.randn(2, 2, generator=generator(8), dtype=torch.float64))[0]
    levels = torch.tensor([1.5, -2.0], dtype=torch.float64)
    tensors = []
    for order in usable:
        weights = [
            level * coefficient(act, order, bias=bias, scale=abs(length)) * math.copysign(1, length) ** order
            for level, length in zip(levels, lengths, strict=True)
        ]
        tensors.append((powers(directions, order) @ torch.stack(weights)).view([2] * order))
    found = sizes(tensors, directions, act, bias, usable, noise=0.0)
    assert found.tolist() == pytest.approx(lengths, abs=0.03)
    lost = sizes(tensors, directions, act, bias, usable, noise=1e9)
    assert lost.abs().tolist() == pytest.approx([1, 1], abs=0.02)  # where noise hides it, the expected one
    assert SPREAD == 0.3


def test_pixels_within_range_decide_an_open_sign() -> None:
    task = Task(input_shape=(1, 2, 2), num_classes=2, mean=(0.1,), std=(0.3,))
    form = known("tanh").form
    bright = (torch.tensor([[0.9, 0.1, 0.8, 0.0]], dtype=torch.float64) - 0.1) / 0.3
    for sign in (1, -1):
        found = Estimate(inputs=sign * bright / 2.0, signed=False, residual=0.0)
        assert torch.allclose(upright(form, task, found, 2.0), bright)
        signed = dataclasses.replace(found, signed=True)
        assert torch.allclose(upright(form, task, signed, 2.0), sign * bright)
        features = dataclasses.replace(form, takes_images=False)
        assert torch.allclose(upright(features, task, found, 2.0), sign * bright)
    images = denormalised(task, 2 * bright)
    assert torch.allclose(images.flatten(), (0.6 * bright + 0.1).clamp(0, 1).flatten().float())
    assert torch.allclose(denormalised(task, 2 * bright, clamp=False).flatten(), 0.6 * bright.flatten() + 0.1)


def test_units_are_standard_and_their_gradients_mix_all_classes() -> None:
    truth = known("tanh", units=7)
    parts = list(_units(truth.head, 2.0, 3)())
    assert torch.allclose(torch.cat([part for part, _ in parts]), 2 * truth.head.weight)
    mixed = class_levels(CLASSES) @ truth.head.output_gradient
    assert torch.allclose(torch.cat([part for _, part in parts]), mixed)
    assert class_levels(4).tolist() == [1, -1.25, 1.5, -1.75]


def test_moments_of_a_wide_layer_give_its_inputs() -> None:
    """Orders 2 and 3 (softplus) and 3 alone (tanh without a bias): the gradients are known by quadrature."""
    random = generator(9, "estimate")
    truth = torch.linalg.qr(torch.randn(5, 2, generator=random, dtype=torch.float64))[0].T
    for activation, bias in (("softplus", 0.5), ("tanh", 0.0)):
        act = activation_layer(activation)
        weights = torch.randn(200_000, 5, generator=random, dtype=torch.float64)
        gradients = act(weights @ truth.T + bias) @ torch.tensor([1.0, -2.0], dtype=torch.float64)

        def units(weights=weights, gradients=gradients):
            return iter([(weights, gradients)])

        found = estimate(units, act, bias, inputs=5, size=2, random=generator(10))
        cosines = torch.nn.functional.normalize(found.inputs, dim=1) @ truth.T
        assert found.signed == (activation == "softplus")
        if not found.signed:
            cosines = cosines.abs()
        assert float(cosines.amax(0).min()) > 0.9
        assert found.residual < 0.3


@pytest.mark.parametrize(
    ("order", "words"), [(3, "shows the span of the inputs"), (4, "shows the span of the inputs")]
)
def test_third_or_fourth_moments_alone_do_not_show_the_span(order: int, words: str) -> None:
    with pytest.raises(FedsimError, match=words):
        plan(lambda values: hermite(order, values), 0.0, None)


def test_first_and_third_moments_together_show_the_span() -> None:
    made = plan(lambda values: hermite(3, values) + values, 0.0, None)
    assert (made.span, made.decomposed, made.usable) == (3, 3, (1, 3))
