"""Epsilon by closed form, by experiment, and of whole clients."""

import math
from statistics import NormalDist

import pytest
import torch
from torch import nn

import fedsim
from fedsim.core.errors import FedsimError
from fedsim.core.gaussian_privacy import at_most, epsilon_of, least_epsilon, least_mu
from fedsim.defenses.privacy.clip import Clip
from fedsim.defenses.privacy.dp import DP
from fedsim.defenses.privacy.inspect_weights import InspectWeights
from fedsim.defenses.privacy.noise import Noise
from fedsim.defenses.privacy.quantize import Quantize
from fedsim.lab.accounting import noise_of_replies

CDF = NormalDist().cdf


@pytest.mark.parametrize(("mu", "delta"), [(0.5, 1e-5), (1.0, 1e-5), (2.0, 1e-3), (3.0, 1e-6), (40.0, 1e-5)])
def test_epsilon_of_gaussians_has_the_delta_that_it_is_for(mu: float, delta: float) -> None:
    epsilon = epsilon_of(mu, delta)
    if mu < 5:  # further out a double has too few digits for this check
        back = CDF(-epsilon / mu + mu / 2) - math.exp(epsilon) * CDF(-epsilon / mu - mu / 2)
        assert back == pytest.approx(delta, rel=1e-3)
    accountants = DP(sigma=1 / mu, delta=delta).epsilon(sample_rate=1.0, steps=1)
    assert 0.6 * accountants < epsilon <= accountants  # theirs is a bound, by moments


def test_no_difference_is_epsilon_zero() -> None:
    assert epsilon_of(0.0, 1e-5) == 0.0
    assert epsilon_of(1e-7, 1e-5) == 0.0


def test_a_test_that_never_errs_shows_what_its_trials_allow() -> None:
    most = at_most(0, 1000, 0.975)
    assert most == pytest.approx(1 - 0.025 ** (1 / 1000), rel=1e-6)
    assert at_most(1000, 1000, 0.975) == 1.0
    assert least_epsilon(most, most, 0.0) == pytest.approx(math.log((1 - most) / most))
    assert least_mu(most, most) == pytest.approx(-2 * NormalDist().inv_cdf(most))
    assert least_epsilon(0.5, 0.5, 0.0) == least_mu(0.5, 0.5) == 0.0  # guessing
    assert least_mu(1.0, 0.1) == 0.0


@pytest.mark.parametrize(
    ("defenses", "noise"),
    [
        ((Clip(max_norm=2), Noise(sigma=3)), 1.5),
        ((Clip(max_norm=2), Noise(sigma=3), Quantize()), 1.5),  # nothing that follows takes it back
        ((Clip(max_norm=2), Quantize(), Noise(sigma=3)), 0.0),  # rounding may make a reply longer
        ((Noise(sigma=3), Clip(max_norm=2)), 0.0),
        ((Clip(scope="tensor"), Noise()), 0.0),
        ((Clip(), Noise(relative=True)), 0.0),
        ((Clip(), Noise(distribution="laplace")), 0.0),
        ((Clip(), Noise(), InspectWeights()), 0.0),  # a refusal tells
        ((), 0.0),
    ],
)
def test_clients_are_promised_what_clip_and_then_noise_gives(defenses, noise: float) -> None:
    assert noise_of_replies(defenses) == noise


class Silent(DP):
    """Claims noise, and adds none."""

    def on_gradient(self, gradient, step, generator):
        return DP(max_norm=self.max_norm, sigma=0.0).on_gradient(gradient, step, generator)


@pytest.fixture
def batch() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    drawn = torch.Generator().manual_seed(3)
    images, labels = torch.rand(3, 1, 4, 4, generator=drawn), torch.randint(2, (3,), generator=drawn)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    nn.init.zeros_(model[1].weight)
    nn.init.zeros_(model[1].bias)
    return model, images, labels


def test_canaries_find_a_promise_that_is_not_kept(batch) -> None:
    broken = fedsim.canaries(*batch, defenses=[Silent(sigma=2.0)], trials=60)
    assert broken.broken
    assert (broken.false_positives, broken.false_negatives) == (0, 0)
    assert broken.least > 2.5 > DP(sigma=4.0).epsilon(sample_rate=1.0, steps=1)


def test_canaries_are_near_what_noise_allows_and_not_above(batch) -> None:
    found = fedsim.canaries(*batch, defenses=[DP(sigma=2.0)], trials=150)
    assert not found.broken
    allowed = epsilon_of(1.0, 1e-5)  # opposite gradients are as far apart as any
    assert 0.3 * allowed < found.gaussian < allowed
    assert found.least < found.gaussian
    assert f"promised: {found.promised:.2f}" in str(found)
    of_replies = fedsim.canaries(*batch, defenses=[Clip(), Noise(sigma=2.0)], trials=10)
    assert of_replies.promised == pytest.approx(allowed)
    assert fedsim.canaries(*batch, trials=10).promised is None


def test_too_few_trials_are_refused(batch) -> None:
    with pytest.raises(FedsimError, match=r"trials: expected a whole number of at least 10, got 3"):
        fedsim.canaries(*batch, trials=3)
