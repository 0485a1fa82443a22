"""Clients whose BatchNorm sees the private batch: public images are shown to the model as that batch was."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import fedsim
from fedsim.attacks.privacy.labels.ilrg_public import ILRGPublic
from fedsim.attacks.privacy.labels.last_layer import public_outputs
from fedsim.attacks.privacy.labels.rlu import RLU
from fedsim.core.types import PublicImages, Task
from fedsim.models.last_linear import last_linear_name

CLASSES, SIZE = 4, 24
TASK = Task(input_shape=(1, 4, 4), num_classes=CLASSES)


def make_model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.Flatten(), nn.Linear(24, CLASSES))
    with torch.no_grad():
        model[3].weight.mul_(4)
    return model.eval()


def batch(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Dark images, far from what the running statistics expect."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.multinomial(torch.tensor([0.1, 0.2, 0.3, 0.4]), SIZE, replacement=True, generator=random)
    return 0.2 * torch.rand(CLASSES, 1, 4, 4, generator=random)[labels], labels


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("attack", [ILRGPublic, RLU])
def test_public_images_have_their_own_statistics_where_private_ones_had(attack, seed: int) -> None:
    model, (images, labels) = make_model(seed), batch(seed)
    made = attack(public=PublicImages(images=images, labels=labels))  # as like the private ones as can be
    seen = fedsim.observe(model, images, labels, batch_norm="train")
    counts = labels.bincount(minlength=CLASSES).tolist()
    assert made.run(model, TASK, [seen]).class_counts.tolist() == counts
    told_wrong = replace(seen, batch_norm="eval")
    assert made.run(model, TASK, [told_wrong]).class_counts.tolist() != counts


@pytest.mark.parametrize(
    ("size", "steps", "expected"), [(24, 1, [24] * 4), (48, 4, [12] * 8), (500, 1, [96])]
)
def test_public_images_come_in_batches_as_large_as_the_private_ones(size, steps, expected) -> None:
    model, sizes = make_model(0), list[int]()
    model[1].register_forward_pre_hook(lambda module, inputs: sizes.append(len(inputs[0])))
    images = torch.rand(96, 1, 4, 4)
    seen = fedsim.observe(model, images, torch.zeros(96, dtype=torch.int64), batch_norm="train")
    seen = replace(seen, num_examples=size, local_steps=steps)
    public = PublicImages(images=images, labels=torch.arange(96) % CLASSES)
    last_linear_name(model, TASK.input_shape)  # which shows the model an image of its own
    sizes.clear()
    public_outputs(model, TASK, seen, seen.sent, public)
    assert sizes == expected


def test_the_model_stays_as_it_was() -> None:
    model, (images, labels) = make_model(0), batch(0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    seen = fedsim.observe(model, images, labels, batch_norm="train")
    ILRGPublic(public=PublicImages(images=images, labels=labels)).run(model, TASK, [seen])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module.training for module in model.modules())
