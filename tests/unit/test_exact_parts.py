"""Parts of exact attacks, against linear systems whose solution is known."""

import pytest
import torch
from torch import Tensor

from fedsim.attacks.privacy.exact.deflation import deflated, solved_inputs
from fedsim.attacks.privacy.text.spans import span_of

SIZE, UNITS = 4, 9


def example(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return a gradient, its errors and inputs in coordinates of its rows, and what reads their 1."""
    random = torch.Generator().manual_seed(seed)
    inputs = torch.randn(SIZE, SIZE, generator=random, dtype=torch.float64)
    errors = torch.randn(SIZE, UNITS, generator=random, dtype=torch.float64)
    ones = torch.linalg.solve(inputs, torch.ones(SIZE, dtype=torch.float64))
    return errors.T @ inputs, errors, inputs, ones


@pytest.mark.parametrize("known", [0, 1, 3])
def test_a_gradient_without_some_errors_spans_the_inputs_of_the_others(known: int) -> None:
    gradient, errors, inputs, _ = example(known)
    left = deflated(gradient, 3 * errors[:known])
    assert torch.allclose(errors[:known] @ left, torch.zeros(known, SIZE, dtype=torch.float64), atol=1e-9)
    others = torch.linalg.qr(inputs[known:].T)[0]
    assert torch.allclose(left @ others @ others.T, left)
    assert int(torch.linalg.matrix_rank(left)) == SIZE - known


def test_all_inputs_follow_from_all_errors_whatever_their_lengths() -> None:
    gradient, errors, inputs, ones = example(0)
    lengths = torch.tensor([2.0, -0.5, 1.0, 10.0], dtype=torch.float64)
    found, told = solved_inputs(gradient, errors / lengths[:, None], torch.zeros_like(inputs), ones)
    assert torch.allclose(found, inputs)
    assert torch.allclose(told, lengths)


def test_where_an_error_is_missing_the_searchs_own_points_stand_in() -> None:
    gradient, errors, inputs, ones = example(1)
    lengths = torch.tensor([2.0, -0.5, 4.0], dtype=torch.float64)
    near = 1.25 * inputs[:3]  # as a search knows them: the 1 at their end tells the factor
    found, told = solved_inputs(gradient, errors[:3] / lengths[:, None], near, ones)
    assert torch.allclose(found, inputs[:3])
    assert torch.allclose(told, lengths / 1.25)


def test_a_point_without_its_1_stays_as_the_search_had_it() -> None:
    gradient, errors, inputs, ones = example(2)
    near = inputs[:2] - (1 - torch.tensor([[0.05], [1.0]])) * ones / ones.square().sum()
    assert (near @ ones).tolist() == pytest.approx([0.05, 1.0])
    gradient = errors[:2].T @ near + errors[2:].T @ inputs[2:]
    found, _ = solved_inputs(gradient, errors[:2], near, ones)
    assert torch.allclose(found, near)
    longer = near * torch.tensor([[3.0], [1.0]])  # .15 is one
    assert torch.allclose(solved_inputs(gradient, errors[:2], longer, ones)[0][0], longer[0] / 0.15)


def test_a_share_of_an_input_outside_of_a_span_is_its_sine() -> None:
    random = torch.Generator().manual_seed(3)
    inputs = torch.randn(3, 20, generator=random, dtype=torch.float64)
    span = span_of(torch.randn(8, 3, generator=random, dtype=torch.float64) @ inputs, 5)
    off = span.outside[:, 0] * inputs[0].norm()
    shown = torch.stack([inputs[0], inputs[0] + off, off, 7 * (inputs[0] + 0.75 * off)])
    assert span.distances(shown[None])[0].tolist() == pytest.approx([0, 0.5**0.5, 1, 0.6], abs=1e-9)
