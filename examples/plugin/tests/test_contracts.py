"""What fedsim asks of every part, over the parts of this package."""

from pathlib import Path

import fedsim_example
import pytest
import torch
from fedsim_example.brightness import Brightness
from fedsim_example.signs import Signs
from fedsim_example.weighted_mean import WeightedMean

import fedsim
from fedsim.testing import check_attack, check_defense, check_metric, check_yaml, small_data, small_model

CONF = Path(fedsim_example.__file__).parent / "conf"


@pytest.mark.parametrize("path", sorted(CONF.glob("*/*.yaml")), ids=lambda path: path.stem)
def test_yamls_agree_with_their_classes(path: Path) -> None:
    check_yaml(path)


def test_the_attack() -> None:
    check_attack(WeightedMean(units=3))


def test_the_defense() -> None:
    check_defense(Signs())


def test_the_metric() -> None:
    check_metric(Brightness(), "brightness")


def test_one_image_alone_is_found_exactly_and_a_batch_is_not() -> None:
    data, model = small_data(), small_model()
    for size in (1, 6):
        images, labels = data.train.batch(torch.arange(size)), data.train.labels[:size]
        seen = fedsim.observe(model, images, labels)
        guess = WeightedMean().run(model, data.task, [seen])
        scores = fedsim.score(guess, images, labels, metrics=["psnr", Brightness()])
        assert (scores["psnr"].value > 80) == (size == 1)
