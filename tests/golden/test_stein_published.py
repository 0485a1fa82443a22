"""The published Stein estimator on random vectors: its rate, and the orders that parity leaves it.

Reference: Wang, Lee and Lei (AISTATS 2023) prove an error of O(sqrt(inputs / units)).
"""

import math

import pytest
import torch

from fedsim.attacks.privacy.stein.stein import estimate
from fedsim.core.randomness import generator
from fedsim.metrics.class_rows import match_rows
from fedsim.models.layers import activation_layer


def vectors(activation: str, bias: float, count: int, seed: int, size: int = 4, inputs: int = 32):
    """Random unit vectors, and units with their gradients, drawn anew at every pass."""
    random, act = generator(seed, "vectors"), activation_layer(activation)
    rows = torch.randn(size, inputs, generator=random, dtype=torch.float64)
    rows = rows / rows.norm(dim=1, keepdim=True)
    levels = torch.sign(torch.randn(size, generator=random)) * (0.5 + torch.rand(size, generator=random))

    def units():
        drawn = generator(seed, "units")
        for begin in range(0, count, 50_000):
            weights = torch.randn(min(50_000, count - begin), inputs, generator=drawn)
            yield weights, act(weights @ rows.T.float() + bias) @ levels

    return rows, units, act


def error_of(activation: str, bias: float, count: int, seed: int) -> float:
    rows, units, act = vectors(activation, bias, count, seed)
    found = estimate(units, act, bias, inputs=32, size=4, random=generator(seed))
    guesses = found.inputs if found.signed else torch.cat([found.inputs, -found.inputs])
    return float((match_rows(guesses, rows) - rows).norm(dim=1).mean())


@pytest.mark.slow
def test_the_published_error_falls_with_the_root_of_the_units() -> None:
    counts = (10_000, 100_000, 1_000_000)
    errors = [sum(error_of("square_cube", 0.0, count, seed) for seed in (540, 541)) / 2 for count in counts]
    assert errors[1] <= 0.15
    assert errors[2] <= 0.055
    slope = math.log(errors[2] / errors[0]) / math.log(counts[2] / counts[0])
    assert -0.6 < slope < -0.4


@pytest.mark.parametrize(
    ("activation", "bias"),
    [
        *[("relu", 0.0), ("tanh", 0.5)],
        *(
            pytest.param(*more, marks=pytest.mark.slow)
            for more in [("relu", 0.5), ("tanh", 0.0), ("gelu", 0.0), ("elu", 0.0)]
        ),
    ],
)
def test_the_published_estimator_follows_parity(activation: str, bias: float) -> None:
    """Second and fourth moments for ReLU without bias, third alone for tanh, second and third with a bias."""
    assert error_of(activation, bias, 300_000, 542) < 0.25
