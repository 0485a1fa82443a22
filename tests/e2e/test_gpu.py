"""A GPU gives the figures that the CPU gives, up to rounding. Skipped, and said so, where there is none."""

import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU here")


@pytest.mark.parametrize(
    ("attack", "figure", "within"), [("ilrg", "lnacc", 0.0), ("peeling", "lnacc", 0.0), ("ig", "psnr", 3.0)]
)
def test_scores_are_those_of_the_cpu(play_small, attack: str, figure: str, within: float) -> None:
    settings = [f"attack={attack}", "model=mlp", "metric=[lnacc,psnr]"]
    settings += ["attack.optimiser.iterations=50"] if attack == "ig" else []
    here, there = (
        play_small(*settings, f"device={device}", folder=device).summary()["metrics"][figure]
        for device in ("cpu", "cuda")
    )
    assert there == pytest.approx(here, abs=within)


@pytest.mark.parametrize("defense", ["noise", "dp", "sparsify", "quantize", "soteria", "mixup"])
def test_defenses_act_on_it(play_small, defense: str) -> None:
    found = play_small(f"defense=[{defense}]", "device=cuda")
    assert not found.faults()
    assert 0 <= found.summary()["metrics"]["lnacc"] <= 1
