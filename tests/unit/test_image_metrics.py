import pytest
import torch

from fedsim.core.errors import FedsimError
from fedsim.core.types import Reconstruction, Truth
from fedsim.data.blind_batches import Rules
from fedsim.lab.scoring import blind_prior
from fedsim.metrics.baselines import scored
from fedsim.metrics.image_error import ImageError
from fedsim.metrics.image_matching import PSNR_CEILING, match_to_truth, peak_signal_to_noise
from fedsim.metrics.lpips import LPIPS, prepared_for_lpips
from fedsim.metrics.psnr import PSNR
from fedsim.metrics.ssim import SSIM, structural_similarity

IMAGES = torch.rand(5, 3, 32, 32, generator=torch.Generator().manual_seed(0))
TRUTH = Truth(round=1, client=0, images=IMAGES, labels=torch.zeros(5, dtype=torch.int64))


def test_psnr_of_a_constant_error_is_known() -> None:
    grey = torch.full((1, 1, 4, 4), 0.5)
    assert float(peak_signal_to_noise(grey, grey + 0.1)) == pytest.approx(20.0, abs=1e-4)
    assert float(peak_signal_to_noise(grey, grey)) == PSNR_CEILING


@pytest.mark.parametrize("metric", [PSNR(), SSIM(), LPIPS()])
def test_the_order_of_guesses_does_not_matter(metric) -> None:
    noisy = (IMAGES + 0.05 * torch.randn(IMAGES.shape, generator=torch.Generator().manual_seed(1))).clamp(
        0, 1
    )
    straight = metric.score(Reconstruction(images=noisy), TRUTH)
    shuffled = metric.score(Reconstruction(images=noisy[torch.tensor([3, 1, 4, 0, 2])]), TRUTH)
    assert shuffled == straight
    assert len(straight.per_example) == 5


def test_matching_finds_the_best_assignment_not_the_greedy_one() -> None:
    truth = torch.tensor([0.0, 0.4]).view(2, 1, 1, 1)
    guess = torch.tensor([0.3, 0.9]).view(2, 1, 1, 1)  # greedy would give 0.3 to 0.4 and 0.9 to 0.0
    best = match_to_truth(guess, truth).flatten().tolist()
    totals = {
        order: float(peak_signal_to_noise(guess[list(order)], truth).sum()) for order in ((0, 1), (1, 0))
    }
    assert best == guess[list(max(totals, key=totals.get))].flatten().tolist()


def test_missing_guesses_are_grey_and_do_not_flatter() -> None:
    one = PSNR().score(Reconstruction(images=IMAGES[2:3]), TRUTH)
    grey = PSNR().score(Reconstruction(images=torch.full_like(IMAGES, 0.5)), TRUTH)
    assert one.per_example[2] == PSNR_CEILING
    assert one.per_example[0] == pytest.approx(grey.per_example[0])


@pytest.mark.parametrize("metric", [PSNR(), SSIM(), LPIPS(), ImageError(), PSNR(best=2)])
def test_guesses_beyond_the_batch_cost(metric) -> None:
    grey, sign = torch.full_like(IMAGES, 0.5), 1 if metric.highest else -1
    values = [
        sign * metric.score(Reconstruction(images=images), TRUTH).value
        for images in (IMAGES, torch.cat([IMAGES, grey[:1]]), torch.cat([IMAGES, grey]))
    ]
    assert values[0] > values[1] > values[2]


def test_a_thousand_public_images_are_no_reconstruction() -> None:
    shots = torch.rand(1000, *IMAGES.shape[1:], generator=torch.Generator().manual_seed(3))
    shots[:, :] = shots.mean(dim=(1, 2, 3), keepdim=True)  # levels of grey: some fit
    many = PSNR().score(Reconstruction(images=shots), TRUTH)
    grey = PSNR().score(Reconstruction(images=torch.full_like(IMAGES, 0.5)), TRUTH)
    assert many.value < grey.value + 0.1


def test_the_baseline_is_the_best_guess_without_a_gradient() -> None:
    public = 0.9 * IMAGES.mean(dim=0, keepdim=True) + torch.zeros(6, 1, 1, 1)
    prior = blind_prior(TRUTH, rules=Rules(), frequencies=(0.5, 0.5), mean=(0.25,), public=[public])
    guess = Reconstruction(images=IMAGES)
    for metric in (PSNR(), ImageError()):
        baseline = scored(metric, guess, TRUTH, prior).baseline
        tried = [
            metric.score(Reconstruction(images=images.expand_as(IMAGES)), TRUTH).value
            for images in (torch.tensor(0.5), torch.tensor(0.25), public[:1])
        ]
        assert baseline == pytest.approx(max(tried) if metric.highest else min(tried))


def test_public_images_of_another_shape_are_no_guess() -> None:
    prior = blind_prior(TRUTH, rules=Rules(), frequencies=(1.0,), public=[torch.zeros(2, 3, 4, 4)])
    assert scored(PSNR(), Reconstruction(images=IMAGES), TRUTH, prior).baseline > 0


def test_equal_images_score_perfectly() -> None:
    same = Reconstruction(images=IMAGES)
    assert PSNR().score(same, TRUTH).value == PSNR_CEILING
    assert SSIM().score(same, TRUTH).value == pytest.approx(1.0)
    assert LPIPS().score(same, TRUTH).value == 0.0


def test_nothing_recovered_nothing_scored_and_wrong_shapes_are_refused() -> None:
    for metric in (PSNR(), SSIM(), LPIPS()):
        assert metric.score(Reconstruction(), TRUTH) is None
        with pytest.raises(FedsimError, match="expected shape"):
            metric.score(Reconstruction(images=torch.zeros(5, 1, 32, 32)), TRUTH)
    with pytest.raises(FedsimError, match="at least 6 pixels"):
        structural_similarity(torch.zeros(1, 1, 4, 4), torch.zeros(1, 1, 4, 4))


def test_images_are_shown_to_the_perceptual_network_between_minus_one_and_one() -> None:
    black_and_white = torch.tensor([0.0, 1.0]).view(2, 1, 1, 1).expand(2, 1, 40, 40)
    prepared = prepared_for_lpips(black_and_white)
    assert prepared.shape == (2, 3, 40, 40)
    assert (prepared[0].unique().item(), prepared[1].unique().item()) == (-1.0, 1.0)
    assert prepared_for_lpips(torch.zeros(1, 3, 31, 31)).shape == (1, 3, 31, 31)  # the smallest it takes
    assert prepared_for_lpips(torch.zeros(1, 3, 30, 31)).shape == (1, 3, 64, 64)


def test_structural_similarity_takes_six_pixels_on_either_side() -> None:
    assert structural_similarity(torch.rand(1, 1, 6, 9), torch.rand(1, 1, 6, 9)).shape == (1,)
    for shape in ((1, 1, 5, 9), (1, 1, 9, 5)):
        with pytest.raises(FedsimError, match="at least 6 pixels"):
            structural_similarity(torch.rand(shape), torch.rand(shape))
