"""What an attacker makes of noise whose deviation it knows."""

import pytest
import torch

from fedsim.attacks.privacy.labels.last_layer import without_noise
from fedsim.core.randomness import generator
from fedsim.core.types import KnownDefense, Observation
from fedsim.defenses.privacy.clip import Clip
from fedsim.defenses.privacy.dp import DP
from fedsim.defenses.privacy.local_steps import LocalSteps
from fedsim.defenses.privacy.mixup import Mixup
from fedsim.defenses.privacy.no_bias import NoBias
from fedsim.defenses.privacy.noise import Noise
from fedsim.defenses.privacy.quantize import Quantize
from fedsim.defenses.privacy.soteria import Soteria
from fedsim.defenses.privacy.sparsify import Sparsify


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


def seen(**told: object) -> Observation:
    weights = {"w": torch.ones(2)}
    return Observation(round=1, client=0, sent=weights, received=weights, **told)


def test_the_noise_of_private_steps_is_told_of_gradients_and_updates() -> None:
    defense = DP(max_norm=2.0, sigma=3.0)
    assert defense.known(seen(kind="gradient", num_examples=12)) == KnownDefense(noise=0.5)
    steps = {"kind": "update", "num_examples": 12, "local_steps": 4}
    assert defense.known(seen(**steps, learning_rate=0.1)).noise == pytest.approx(2.0 * 0.1 * 2)
    assert defense.known(seen(**steps)) == KnownDefense()
    assert defense.known(seen(kind="gradient")) == KnownDefense()


def test_settings_tell_an_attacker_of_noise_and_of_zeros() -> None:
    gradient = seen(kind="gradient")
    assert Noise(sigma=0.3).known(gradient) == KnownDefense(noise=0.3)
    assert Noise(sigma=0.3, relative=True).known(gradient) == KnownDefense(relative_noise=0.3)
    for defense in (Sparsify(), Soteria(), NoBias()):
        assert defense.known(gradient) == KnownDefense(zeros=True)
    for defense in (Clip(), Mixup(), Quantize(), LocalSteps()):
        assert defense.known(gradient) == KnownDefense()
