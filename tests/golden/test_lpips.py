"""LPIPS is the standard one: the lpips package, called by hand with the same trunk, agrees."""

import torch
from safetensors.torch import load_file

from fedsim.core.vision import load_torchvision
from fedsim.data.cifar10_small import cifar10_small
from fedsim.data.images import ASSETS
from fedsim.metrics.lpips import perceptual_distance


def package_by_hand(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    load_torchvision()
    import lpips

    network = lpips.LPIPS(net="alex", pnet_rand=True, verbose=False).eval()
    stored = load_file(ASSETS / "alexnet_features.safetensors")
    for name, module in network.net.named_modules():
        if isinstance(module, torch.nn.Conv2d):
            place = name.split(".")[1]  # slice2.3 is AlexNet's features.3
            module.weight.data = stored[f"features.{place}.weight"]
            module.bias.data = stored[f"features.{place}.bias"]
    with torch.no_grad():
        return network(left * 2 - 1, right * 2 - 1).flatten()


def test_distances_equal_the_package() -> None:
    images = cifar10_small().train.batch(torch.arange(8))
    left, right = images[:4], images[4:]
    assert torch.allclose(perceptual_distance(left, right), package_by_hand(left, right), atol=1e-6)
    assert perceptual_distance(left, left).tolist() == [0.0] * 4


def test_similar_images_are_closer_than_different_ones() -> None:
    images = cifar10_small().train.batch(torch.arange(8))
    noisy = (images + 0.02 * torch.randn(images.shape, generator=torch.Generator().manual_seed(0))).clamp(
        0, 1
    )
    near, far = perceptual_distance(noisy, images), perceptual_distance(images.flip(0), images)
    assert float(near.max()) < 0.5 * float(far.min())


def test_grey_and_small_images_are_taken() -> None:
    digits = torch.rand(2, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    enlarged = torch.nn.functional.interpolate(digits, size=(64, 64), mode="bilinear").repeat(1, 3, 1, 1)
    expected = package_by_hand(enlarged[:1], enlarged[1:])
    assert torch.allclose(perceptual_distance(digits[:1], digits[1:]), expected, atol=1e-6)
