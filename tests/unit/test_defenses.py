import pytest
import torch

from fedsim.core.errors import FedsimError
from fedsim.core.randomness import generator
from fedsim.defenses.privacy.clip import Clip
from fedsim.defenses.privacy.noise import Noise
from fedsim.defenses.privacy.quantize import Quantize
from fedsim.defenses.privacy.sparsify import Sparsify, sparsify

REPLY = {"w": torch.tensor([[3.0, -0.1], [0.5, 0.2]]), "b": torch.tensor([4.0])}


def test_clip_scales_all_tensors_together_and_only_down() -> None:
    norm = float(torch.cat([t.flatten() for t in REPLY.values()]).norm())
    clipped = Clip(max_norm=1.0).on_reply(REPLY, "gradient", generator(0))
    assert torch.allclose(clipped["w"], REPLY["w"] / norm)
    assert torch.equal(Clip(max_norm=100.0).on_reply(REPLY, "gradient", generator(0))["b"], REPLY["b"])


def test_noise_has_the_deviation_asked_for_and_the_seed_decides() -> None:
    zeros = {"w": torch.zeros(100_000)}
    noisy = Noise(sigma=0.3).on_reply(zeros, "update", generator(1))
    assert float(noisy["w"].std()) == pytest.approx(0.3, rel=0.02)
    assert torch.equal(noisy["w"], Noise(sigma=0.3).on_reply(zeros, "update", generator(1))["w"])
    assert torch.equal(zeros["w"], torch.zeros(100_000))


def test_sparsify_drops_the_smallest_share_of_each_tensor() -> None:
    assert sparsify(REPLY["w"], 0.5).tolist() == [[3.0, 0.0], [0.5, 0.0]]
    assert Sparsify(rate=0.5).on_reply(REPLY, "gradient", generator(0))["b"].tolist() == [4.0]


def test_wrong_settings_are_refused() -> None:
    for make in (lambda: Clip(max_norm=0), lambda: Noise(sigma=-1), lambda: Sparsify(rate=1.0)):
        with pytest.raises(FedsimError, match="expected"):
            make()


def test_signs_have_the_mean_magnitude_of_their_tensor() -> None:
    sent = Quantize(method="sign").on_reply(REPLY, "gradient", generator(0))
    assert sent["w"].flatten().tolist() == pytest.approx([0.95, -0.95, 0.95, 0.95])
    assert sent["b"].tolist() == [4.0]
