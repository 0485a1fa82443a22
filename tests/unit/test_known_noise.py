"""What an attacker makes of noise whose deviation it knows."""

import torch

from fedsim.attacks.privacy.labels.last_layer import without_noise
from fedsim.core.randomness import generator
from fedsim.core.types import KnownDefense


def test_known_noise_is_taken_out_of_a_rank_one_gradient() -> None:
    random = generator(0, "rank one")
    gaps, gains = [], []
    for _ in range(50):
        bias = torch.randn(10, generator=random, dtype=torch.float64) / 5
        embedding = torch.rand(60, generator=random, dtype=torch.float64)
        weight = bias[:, None] * embedding
        noisy_bias = bias + 0.05 * torch.randn(10, generator=random, dtype=torch.float64)
        noisy_weight = weight + 0.05 * torch.randn(weight.shape, generator=random, dtype=torch.float64)
        cleaned = without_noise(noisy_bias, noisy_weight, 0.05, 0.05)
        gaps.append(float((noisy_bias - bias).norm()))
        gains.append(float((cleaned - bias).norm()))
    assert sum(gains) < 0.75 * sum(gaps)


def test_without_noise_nothing_changes_and_lost_directions_are_not_trusted() -> None:
    random = generator(1, "noise alone")
    bias, weight = torch.randn(10, generator=random).double(), torch.randn(10, 60, generator=random).double()
    assert torch.equal(without_noise(bias, weight, 0.0, 0.0), bias)
    assert torch.allclose(without_noise(bias, weight, 1.0, 1.0), bias, atol=0.35)


def test_relative_noise_has_its_deviation_from_what_was_received() -> None:
    clean = torch.randn(200_000, generator=generator(2)).double()
    noisy = clean * 3 + 0.5 * 3 * torch.randn(200_000, generator=generator(3)).double()
    assert abs(KnownDefense(relative_noise=0.5).deviation(noisy) - 1.5) < 0.02
    assert KnownDefense(noise=0.25).deviation(noisy) == 0.25
