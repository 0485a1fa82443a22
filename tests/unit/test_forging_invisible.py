"""Pixels that the gradient does not read: found, moved as far as they go, and the same update to the bit."""

from collections import OrderedDict
from dataclasses import replace

import pytest
import torch
from small_world import DATA, challenge
from torch import Tensor, nn

from fedsim.attacks.integrity.forging.invisible import Invisible, _asleep, confirmed, goal_images
from fedsim.attacks.integrity.forging.margins import always_read, furthest, margins, stuck
from fedsim.attacks.integrity.forging.unread import read_inputs, reading, same_gradient, same_step
from fedsim.core.challenges import Challenge
from fedsim.core.errors import FedsimError
from fedsim.core.training import Batch, load_weights, sgd_step, weights_of
from fedsim.defenses.integrity.proof.domain import domain_of
from fedsim.models.layers import Normalize
from fedsim.models.softmax import softmax


def pooled_net(pooling: bool = True, norm: bool = False) -> nn.Module:
    """Two channels of 3 x 3 on 7 x 7 pixels, so that corners are read by few units."""
    torch.manual_seed(1)
    layers: OrderedDict[str, nn.Module] = OrderedDict(normalize=Normalize(DATA.task), conv=nn.Conv2d(1, 2, 3))
    if norm:
        layers["norm"] = nn.BatchNorm2d(2)
    layers["activation"] = nn.ReLU()
    if pooling:
        layers["pool"] = nn.MaxPool2d(2)
    layers |= {"flatten": nn.Flatten(), "output": nn.Linear(8 if pooling else 50, 4)}
    return nn.Sequential(layers).eval()


def asked_of(model: nn.Module, size: int = 12) -> Challenge:
    """A challenge in float32, as games have them."""
    asked = challenge(model, size)
    batch = Batch(images=asked.batch.images.float(), labels=asked.batch.labels)
    return replace(asked, model=model.float(), batch=batch)


@pytest.mark.parametrize("towards", ["far", "blank", "other"])
def test_a_moved_batch_takes_the_same_step_to_the_bit(towards: str) -> None:
    asked = asked_of(pooled_net())
    claimed = Invisible(towards=towards).forge(asked)
    changed = (claimed.images != asked.batch.images).flatten(1).any(dim=1)
    assert int(changed.sum()) >= 9
    assert domain_of(claimed, 12, DATA.task) == "uint8"
    after = list[dict[str, Tensor]]()
    for batch in (asked.batch, claimed):
        model = pooled_net()
        load_weights(model, weights_of(asked.model))
        sgd_step(model, batch, 0.3)
        after.append(weights_of(model))
    assert all(torch.equal(after[0][name], after[1][name]) for name in after[0])
    goals = goal_images(asked, torch.arange(12), towards)
    before, now = (
        (goals - images).abs().flatten(1).sum(dim=1) for images in (asked.batch.images, claimed.images)
    )
    assert (now[changed] < before[changed]).all()
    seen = ~reading(asked.model, asked.batch).free
    assert torch.equal(claimed.images[seen], asked.batch.images[seen])
    noticed = asked.batch.images.clone()
    noticed[seen] = 1 - noticed[seen]
    assert not same_gradient(asked.model, asked.batch, noticed)  # the twin that must miss


def test_a_model_that_reads_every_pixel_leaves_nothing_to_move() -> None:
    with pytest.raises(FedsimError, match=r"reads every pixel of the 12 images.*Remedy"):
        Invisible(trials=2).forge(asked_of(softmax(DATA.task)))
    narrow = nn.Sequential(nn.AvgPool2d(7), nn.Flatten(), nn.Linear(1, 4))
    with pytest.raises(FedsimError, match="first layer reads pixels one by one"):
        Invisible(trials=2).forge(asked_of(narrow))
    open_eyed = pooled_net(pooling=False)
    open_eyed.conv = nn.Conv2d(1, 6, 3)  # 6 x 25 units that are on, for 49 pixels
    open_eyed.conv.bias.data.fill_(5.0)
    open_eyed.output = nn.Linear(150, 4)
    with pytest.raises(FedsimError, match=r"see all 49 directions of an image: none is free.*Remedy"):
        Invisible(trials=2).forge(asked_of(open_eyed))


@pytest.mark.parametrize(
    ("layer", "inputs"),
    [
        (nn.Conv2d(2, 3, 3, stride=2, padding=1), torch.randn(4, 2, 7, 7)),
        (nn.Conv2d(1, 2, 3, dilation=2), torch.randn(4, 1, 9, 9)),
        (nn.Linear(5, 3), torch.randn(4, 5)),
        (nn.BatchNorm2d(2).eval(), torch.randn(4, 2, 3, 3)),
        (nn.Conv2d(2, 4, 3, groups=2), torch.randn(4, 2, 5, 5)),
    ],
    ids=lambda part: type(part).__name__,
)
def test_inputs_that_meet_no_error_are_in_no_gradient(layer: nn.Module, inputs: Tensor) -> None:
    torch.manual_seed(0)
    errors = torch.randn_like(layer(inputs)) * (torch.rand_like(layer(inputs)) < 0.1)
    errors[0] = 0

    def gradient(values: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad(layer(values), list(layer.parameters()), errors))

    read = read_inputs(layer, inputs, errors)
    assert not read[0].any()
    assert read.any()
    unread = torch.where(read, inputs, torch.randn_like(inputs))
    assert all(map(torch.equal, gradient(inputs), gradient(unread)))
    changed = torch.where(read, torch.randn_like(inputs), inputs)
    assert not all(map(torch.equal, gradient(inputs), gradient(changed)))


def test_words_without_an_error_are_not_read() -> None:
    layer, words = nn.Embedding(9, 2), torch.tensor([[1, 2, 3], [4, 5, 6]])
    errors = torch.zeros(2, 3, 2)
    errors[1, 2, 0] = 1
    assert read_inputs(layer, words, errors).tolist() == [[False] * 3, [False, False, True]]


@pytest.mark.parametrize(("pooling", "norm"), [(True, False), (True, True), (False, True)])
def test_moves_wake_no_unit_and_use_the_room_that_there_is(pooling: bool, norm: bool) -> None:
    model = pooled_net(pooling, norm)
    if norm:
        model.norm.running_var.fill_(0.25)
        model.norm.bias.data.fill_(-1.5)  # most units are off
    batch = asked_of(model).batch
    images, own = batch.images, margins(model, batch)
    assert own is not None
    moved = 0
    for place in range(4):
        levels = torch.round(images[place].double().flatten() * 255)
        way = torch.where(levels < 128, 255 - levels, -levels)
        low, high = way.clamp(max=0), way.clamp(min=0)
        moves, _ = furthest(own, place, own.held[0][place], low, high, torch.sign(way))
        other = ((levels + moves) / 255).float().view(1, 1, 7, 7)
        parts = [part for name, part in model.named_children() if name not in ("flatten", "output")]
        before, after = (nn.Sequential(*parts)(pixels) for pixels in (images[place : place + 1], other))
        assert torch.equal(before, after)
        moved += int((moves != 0).sum())
    assert moved > 0


def test_images_that_do_not_keep_the_gradient_are_put_back() -> None:
    asked = asked_of(pooled_net())
    claimed = Invisible().forge(asked).images
    spoilt = claimed.clone()
    spoilt[[2, 7]] = 1 - spoilt[[2, 7]]
    kept = confirmed(asked, asked.batch.images, spoilt, torch.arange(12))
    assert torch.equal(kept[[2, 7]], asked.batch.images[[2, 7]])
    others = [place for place in range(12) if place not in (2, 7)]
    assert torch.equal(kept[others], claimed[others])


def test_no_unit_wakes_up_on_the_way() -> None:
    """The first move alone, without trials: as far as units stay asleep, and no further."""
    asked = asked_of(pooled_net())
    images, goals = asked.batch.images, goal_images(asked, torch.arange(12), "far")
    before, own = reading(asked.model, asked.batch), margins(asked.model, asked.batch)
    assert own is not None
    moved = _asleep(own, own.held[0], images, goals, torch.ones(12, dtype=torch.bool), 255)
    assert torch.equal(moved[~before.free], images[~before.free])
    assert int((moved != images).flatten(1).any(dim=1).sum()) >= 6
    now = Batch(images=moved, labels=asked.batch.labels)
    assert bool(before.same_as(reading(asked.model, now)).all())


def black_batch(first_column: tuple[float, ...]) -> tuple[nn.Module, Batch]:
    """A unit of 4 x 4 that is on everywhere, on black: all places of a pooling are as high."""
    torch.manual_seed(0)
    unit = nn.Conv2d(1, 1, 4)
    unit.weight.data.fill_(1.0)
    unit.weight.data[0, 0, :, 0] = torch.tensor(first_column)
    unit.bias.data.fill_(5.0)
    model = nn.Sequential(unit, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4, 4))
    return model, Batch(images=torch.zeros(2, 1, 7, 7), labels=torch.tensor([0, 1]))


def test_another_of_equal_units_may_stand_for_the_one_that_was_read() -> None:
    model, batch = black_batch((1.0, -1.0, -1.0, 1.0))
    own = margins(model, batch)
    assert own is not None
    high = torch.full((49,), 255.0, dtype=torch.float64)
    found = [
        furthest(own, 0, held[0], torch.zeros_like(high), high, torch.ones_like(high))[0] for held in own.held
    ]
    assert [bool(moves.any()) for moves in found] == [False, True, False, True]  # the left margin
    other = batch.images.clone()
    other[0] = (found[1] / 255).float().view(1, 7, 7)
    before, after = reading(model, batch), reading(model, Batch(images=other, labels=batch.labels))
    assert before.same_as(after).all()
    assert not before.free[0].flatten()[found[1] != 0].all()  # an error met some of them
    assert not stuck(own, 0, batch.images[0])


def test_an_image_that_cannot_move_is_known_to_be_stuck() -> None:
    model, batch = black_batch((1.0, 1.0, 1.0, 1.0))
    own = margins(model, batch)
    assert own is not None
    assert stuck(own, 0, batch.images[0])  # whatever is lit, a unit rises that is passed on
    asked = replace(asked_of(model, 2), batch=batch, unwanted=torch.arange(2))
    with pytest.raises(FedsimError, match="no other grey levels of the 2 images leave the step"):
        Invisible(trials=2).forge(asked)
    # A step so small that a grey level is lost in the last bit of the weights, and one that is not.
    claimed = Invisible(trials=2).forge(replace(asked, learning_rate=1e-7)).images
    assert ((claimed != batch.images).flatten(1).sum(dim=1) == 1).all()
    assert same_step(model, batch, claimed, 1e-7)
    assert not same_step(model, batch, claimed, 1.0)
    assert not same_gradient(model, batch, claimed)
    with pytest.raises(FedsimError, match="no other grey levels"):
        Invisible(trials=2).forge(replace(asked, learning_rate=1.0))
    model[0].bias.data.fill_(-5000.0)  # off: nothing is read
    own = margins(model, batch)
    assert own is not None
    assert not stuck(own, 0, batch.images[0])


def test_pixels_that_are_always_read_are_those_that_all_ways_to_settle_a_tie_read() -> None:
    model, batch = black_batch((1.0, -1.0, -1.0, 1.0))
    images = batch.images.clone()
    images[0, 0, 5, 5] = 1.0  # a window without a tie
    own = margins(model, Batch(images=images, labels=batch.labels))
    assert own is not None
    kept = own.unread_rise().held
    for place in range(2):
        wanted = set[int]()
        for window in range(own.chosen[0].shape[2]):
            units = [int(way[place, 0, window]) for way in own.chosen]
            if all(held[place, 0, unit] for held, unit in zip(kept, units, strict=True)):
                wanted |= set.intersection(*(set(own.pixels[unit].tolist()) for unit in units))
        assert set(always_read(own, place, 49).nonzero().flatten().tolist()) == wanted
        assert wanted < set(own.pixels[kept[0][place].any(dim=0)].flatten().tolist())  # a tie leaves some
