"""Parts of crafted weights on small made-up images: what passes through layers, thresholds, regression."""

import math

import pytest
import torch
from torch import Tensor, nn

from fedsim.attacks.privacy.crafted.carry import carriage_of
from fedsim.attacks.privacy.crafted.crafted import RIDGE, regressed
from fedsim.attacks.privacy.crafted.fishing import Fishing
from fedsim.attacks.privacy.crafted.imprint import Imprint, binned
from fedsim.attacks.privacy.crafted.quiet import Quiet
from fedsim.attacks.privacy.crafted.readout import SYNTHETIC, find_place, images_of, read
from fedsim.core.errors import FedsimError
from fedsim.core.training import weights_of
from fedsim.core.types import Observation, PublicImages, Task

PLAIN = Task(input_shape=(1, 8, 8), num_classes=4)
TASK = Task(input_shape=(1, 8, 8), num_classes=4, mean=(0.2,), std=(0.5,))


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_features_are_read_back_by_ridge_regression() -> None:
    known, features = drawn(40, 5) + 3, drawn(7, 5, seed=1) + 3
    pixels = known @ drawn(5, 9, seed=2) + drawn(40, 9, seed=3)
    mean, level = known.mean(dim=0), pixels.mean(dim=0)
    strength = math.sqrt(RIDGE * float((known - mean).square().sum()) / 5)
    left = torch.cat([known - mean, strength * torch.eye(5, dtype=torch.float64)])  # rows of the ridge
    right = torch.cat([pixels - level, torch.zeros(5, 9, dtype=torch.float64)])
    slopes = torch.linalg.lstsq(left, right).solution
    assert torch.allclose(regressed(known, pixels, features), (features - mean) @ slopes + level)


@pytest.mark.parametrize("share", [1.0, 0.2])
def test_fishing_spends_its_bins_on_the_brightest_share_of_each_direction(share: float) -> None:
    inputs = drawn(500, 6).float()
    plan = Fishing(brightest=share, directions=2).plan(inputs, 10, torch.Generator().manual_seed(4))
    plain = binned(inputs, 10, 2, 1, torch.Generator().manual_seed(4))
    assert torch.equal(plan.rows, plain.rows)
    assert torch.equal(plan.levels, plain.levels)
    for direction in range(2):
        values = inputs.double() @ plan.rows[direction]
        above = [float((values > threshold).double().mean()) for threshold in plan.thresholds[direction::2]]
        assert above == pytest.approx([share * bin for bin in (0.9, 0.7, 0.5, 0.3, 0.1)], abs=0.003)


def network(*between: nn.Module, bias: bool = True, channels: int = 6) -> nn.Sequential:
    layers = [nn.Conv2d(1, channels, 2, stride=2, bias=bias), *between, nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(16 * channels, 9), nn.ReLU(), nn.Linear(9, 4)).eval()


def test_pixels_pass_a_batch_norm_and_channels_that_are_left_over() -> None:
    norm = nn.BatchNorm2d(6)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    norm.running_mean.copy_(drawn(6))
    norm.running_var.copy_(drawn(6, seed=1).abs() + 0.1)
    model = network(norm)
    carriage = carriage_of(model, TASK, "4")
    assert carriage.exact
    assert carriage.summary == "96 features for 64 pixels, each of 1 x 1"
    model.load_state_dict({**model.state_dict(), **carriage.tensors})
    images = drawn(3, 1, 8, 8).sigmoid().float()
    arrived = model[:4]((images - 0.2) / 0.5)
    assert torch.allclose(carriage.images(arrived.double(), TASK), images, atol=1e-5)


def test_with_too_few_channels_some_pixels_are_those_of_the_mean() -> None:
    model = network(channels=2)
    carriage = carriage_of(model, TASK, "3")
    assert not carriage.exact
    model.load_state_dict({**model.state_dict(), **carriage.tensors})
    images = drawn(1, 1, 8, 8).sigmoid().float()
    shown = carriage.images(model[:3]((images - 0.2) / 0.5).double(), TASK)
    right = (shown - images).abs() < 1e-5
    assert int(right.sum()) == 32
    assert torch.allclose(shown[~right], torch.tensor(0.2))


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (network(bias=False), "first convolution.*no bias to lift"),
        (network(nn.Sigmoid()), "'1'.*Sigmoid does not pass pixels on"),
    ],
)
def test_layers_that_pixels_do_not_pass_are_named(model: nn.Sequential, words: str) -> None:
    last = next(name for name, layer in model.named_children() if isinstance(layer, nn.Linear))
    with pytest.raises(FedsimError, match=words):
        carriage_of(model, TASK, last)


def test_who_fishes_needs_two_layers_and_a_class_that_exists() -> None:
    two = nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.ReLU(), nn.Linear(9, 4))
    three = nn.Sequential(*two[:3], nn.Linear(9, 9), nn.ReLU(), nn.Linear(9, 4))
    Fishing(target=3).check(two, PLAIN)
    with pytest.raises(FedsimError, match="expected two linear layers, got"):
        Fishing().check(three, PLAIN)
    with pytest.raises(FedsimError, match=r"attack\.target: expected below 4, got 4"):
        Fishing(target=4).check(two, PLAIN)
    with pytest.raises(FedsimError, match="has no bias"):
        Imprint().check(nn.Sequential(nn.Flatten(), nn.Linear(64, 9, bias=False), *two[2:]), PLAIN)


@pytest.mark.parametrize("bias", [50.0, 0.5])
def test_quiet_exchanges_some_rows_for_ones_that_few_images_pass(bias: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 45), nn.ReLU(), nn.Linear(45, 4))
    public = PublicImages(images=drawn(200, 1, 8, 8).sigmoid().float(), labels=torch.zeros(200).long())
    before = weights_of(model)
    sent = Quiet(public=public, units=0.3, passing=0.1, bias=bias).craft(model, PLAIN, 1, before)
    changed = (sent["1.weight"] != before["1.weight"]).any(dim=1)
    assert int(changed.sum()) == 14  # of 45, rounded up
    assert torch.equal(sent["1.bias"][~changed], before["1.bias"][~changed])
    assert all(torch.equal(sent[name], before[name]) for name in ("3.weight", "3.bias"))
    lengths = [weights["1.weight"][changed].norm(dim=1) for weights in (before, sent)]
    assert torch.allclose(*lengths)  # no longer than they were
    largest = float((sent["1.bias"][changed].abs() / lengths[0]).max())
    if bias == 0.5:
        assert largest == pytest.approx(0.5)
        return
    passing = (public.images.flatten(1) @ sent["1.weight"].T + sent["1.bias"] > 0)[:, changed]
    assert passing.float().mean(dim=0).tolist() == pytest.approx([0.1] * 14, abs=0.011)


def test_an_update_of_one_step_is_read_as_its_gradient() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.ReLU(), nn.Linear(9, 4))
    sent = weights_of(model)
    gradient = {name: torch.randn_like(tensor) for name, tensor in sent.items()}
    update = {name: -0.25 * tensor for name, tensor in gradient.items()}
    one = Observation(round=1, client=0, sent=sent, received=gradient, kind="gradient", num_examples=3)
    told = {"kind": "update", "learning_rate": 0.25, "local_steps": 1, "num_examples": 3}
    other = Observation(round=1, client=0, sent=sent, received=update, **told)
    first, second = (read(model, PLAIN, find_place(model, PLAIN), seen) for seen in (one, other))
    assert torch.allclose(first.gradient, second.gradient)
    assert torch.allclose(first.gradient[:, :64], gradient["1.weight"].double())
    two = Observation(round=1, client=0, sent=sent, received=update, **told | {"local_steps": 2})
    with pytest.raises(FedsimError, match="expected one local step, got 2"):
        read(model, PLAIN, find_place(model, PLAIN), two)
    still = {name: torch.zeros_like(tensor) for name, tensor in sent.items()}
    nothing = Observation(round=1, client=0, sent=sent, received=still, kind="gradient", num_examples=3)
    with pytest.raises(FedsimError, match="is zero: no unit fired"):
        read(model, PLAIN, find_place(model, PLAIN), nothing)


def test_without_public_images_thresholds_are_set_by_made_up_ones_of_the_tasks_mean_and_deviation() -> None:
    task = Task(input_shape=(2, 32, 32), num_classes=4, mean=(0.5, 0.4), std=(0.1, 0.05))
    made = images_of(task, None, 7)
    assert made.shape == (SYNTHETIC, 2, 32, 32)
    assert made.mean(dim=(0, 2, 3)).tolist() == pytest.approx([0.5, 0.4], abs=0.01)
    assert made.std(dim=(0, 2, 3)).tolist() == pytest.approx([0.1, 0.05], rel=0.15)
    assert torch.equal(made, images_of(task, None, 7))
    assert not torch.equal(made, images_of(task, None, 8))
    public = PublicImages(images=drawn(3, 2, 32, 32).float(), labels=torch.zeros(3).long())
    assert torch.equal(images_of(task, public, 7), public.images)
