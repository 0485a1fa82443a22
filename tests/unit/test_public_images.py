"""Public images are nobody's: whatever way an attack comes by them, the clients' own are refused."""

import numpy as np
import pytest
import torch
from torch import Tensor

import fedsim
from fedsim.core.errors import FedsimError
from fedsim.core.types import PublicImages, Task
from fedsim.data.images import ArrayImages, Dataset
from fedsim.data.public import fingerprints, number_owned, public_images
from fedsim.data.synthetic import synthetic

OWN = r"the clients own the training split.*Remedy"
SYNTHETIC = "{_target_: fedsim.data.synthetic.synthetic, shape: [1, 8, 8], num_classes: 4, train_size: 160"
PUBLIC = "{_target_: fedsim.data.public.public_images, split: train, data: ${data}}"
RLU = "{_target_: fedsim.attacks.privacy.labels.rlu.RLU, public: %s}"


def swapped() -> Dataset:
    """Call the training split of the clients' data set the test split."""
    data = synthetic(shape=(1, 8, 8), num_classes=4, train_size=160, test_size=40)
    return Dataset(task=data.task, train=data.test, test=data.train)


def test_the_test_split_is_public(small) -> None:
    assert len(small("attack=ilrg_public").attack.public.labels) == 40


@pytest.mark.parametrize(
    "overrides",
    [
        ["attack=ilrg_public", "attack.public.split=train"],
        ["attack=rlu", "attack.public.split=train", "attack.public.size=1"],
        # The same images under another size of the test split, other labels, or another name of the split.
        ["attack=rlu", "attack.public.split=train", f"attack.public.data={SYNTHETIC}, test_size: 8}}"],
        [
            "attack=rlu",
            "attack.public.split=train",
            "attack.public.data={_target_: fedsim.data.random_labels.random_labels, num_classes: 4, "
            f"data: {SYNTHETIC}}}}}",
        ],
        ["attack=rlu", f"attack.public.data={{_target_: {__name__}.swapped}}"],
        # An attack within another one, and some of the images.
        ["attack=ilrg", f"attack.classes={RLU % PUBLIC}"],
    ],
)
def test_the_clients_own_images_are_no_public_images(small, overrides: list[str]) -> None:
    with pytest.raises(FedsimError, match=OWN):
        small(*overrides)


def test_nor_are_they_from_python(tmp_path) -> None:
    with pytest.raises(FedsimError, match=OWN):
        fedsim.run("attack=rlu", "data=synthetic", "attack.public.split=train", folder=tmp_path / "run")


def grey(pixels: Tensor) -> ArrayImages:
    return ArrayImages(pixels=pixels.to(torch.uint8), labels=torch.arange(len(pixels)))


def test_test_images_that_clients_own_as_well_are_left_out() -> None:
    pixels = torch.arange(10)[:, None, None, None].expand(10, 1, 2, 2)
    task = Task(input_shape=(1, 2, 2), num_classes=10)
    data = Dataset(task=task, train=grey(pixels[:5]), test=grey(pixels[3:]))
    public = public_images(data=data)
    assert sorted((public.images[:, 0, 0, 0] * 255).round().int().tolist()) == [5, 6, 7, 8, 9]
    assert number_owned(fingerprints(public.images), data.train) == 0
    everything = PublicImages(images=data.test.batch(torch.arange(7)), labels=torch.arange(7))
    assert number_owned(fingerprints(everything.images), data.train) == 2


def test_a_fingerprint_is_of_every_pixel_in_its_place() -> None:
    random = torch.Generator().manual_seed(0)
    images = torch.randint(256, (50, 3, 4, 4), generator=random) / 255
    found = fingerprints(images)
    assert len(np.unique(found.numpy())) == 50
    assert torch.equal(found, fingerprints(images.double().float() + 1e-5))
    changed = images.clone()
    changed[:, 2, 3, 3] = (changed[:, 2, 3, 3] + 1 / 255) % 1
    assert not bool((found == fingerprints(changed)).any())
    assert not bool((found == fingerprints(images.flip(3))).any())
