"""Chosen weights: what peeling finds, what spaces add to it, and what is never said of a wrong image."""

import dataclasses

import pytest
import torch
from torch import Tensor, nn

import fedsim
from fedsim.attacks.privacy.crafted.carry import carriage_of
from fedsim.attacks.privacy.crafted.crafted import Crafted
from fedsim.attacks.privacy.crafted.decode import Peel, next_above
from fedsim.attacks.privacy.crafted.fishing import Fishing
from fedsim.attacks.privacy.crafted.imprint import Imprint
from fedsim.attacks.privacy.crafted.leftover import solve_bins
from fedsim.attacks.privacy.crafted.loki import Loki
from fedsim.attacks.privacy.crafted.quiet import Quiet
from fedsim.attacks.privacy.crafted.readout import carrying, crafted, entering, find_place, read
from fedsim.attacks.privacy.crafted.residual_fishing import ResidualFishing
from fedsim.attacks.privacy.crafted.soliton import Soliton, robust_soliton
from fedsim.attacks.privacy.crafted.trap_weights import TrapWeights
from fedsim.core.errors import FedsimError, Refused
from fedsim.core.interfaces import LocalStep
from fedsim.core.training import batch_gradient, load_weights, weights_of
from fedsim.core.types import Observation, PublicImages, Reconstruction, Truth
from fedsim.defenses.privacy.inspect_weights import InspectWeights
from fedsim.defenses.privacy.limits import calibrated
from fedsim.metrics.recovered import Recovered

DATA = fedsim.dataset("mnist_small")
PUBLIC = PublicImages(images=DATA.test.batch(torch.arange(300)), labels=DATA.test.labels[:300])


def network(width: int = 200, depth: int = 2) -> nn.Module:
    return fedsim.model("mlp", task=DATA.task, depth=depth, width=width)


def seen(attack: Crafted, model: nn.Module, size: int, client: int = 0, first: int = 0) -> Observation:
    """What a server sees of a client's batch that begins at `first`."""
    sent = attack.craft(model, DATA.task, 1, weights_of(model))
    sent = attack.tailor(model, DATA.task, 1, client, sent)
    load_weights(model, sent)
    places = torch.arange(first, first + size)
    gradient, _ = batch_gradient(model, DATA.train.batch(places), DATA.train.labels[places])
    return Observation(
        round=1, client=client, sent=sent, received=gradient, kind="gradient", num_examples=size
    )


def share(guess: Reconstruction, size: int, first: int = 0) -> float:
    places = torch.arange(first, first + size)
    truth = Truth(round=1, client=0, images=DATA.train.batch(places), labels=DATA.train.labels[places])
    score = Recovered().score(guess, truth)
    assert score is not None
    return score.value


@pytest.mark.parametrize(
    ("attack", "size", "least"),
    [
        (Imprint(public=PUBLIC), 24, 0.9),
        (Imprint(public=PUBLIC, directions=3, levels=1), 100, 0.95),
        (Soliton(public=PUBLIC, examples=80), 80, 0.9),
        (Soliton(examples=40), 40, 0.9),  # without data
        (TrapWeights(public=PUBLIC, passing=0.06), 24, 0.8),
        (Quiet(public=PUBLIC, passing=0.06), 12, 0.8),
    ],
    ids=lambda value: type(value).__name__,
)
def test_batches_are_recovered_and_certificates_are_right(attack: Crafted, size: int, least: float) -> None:
    model = network()
    observation = seen(attack, model, size)
    guess = attack.run(model, DATA.task, [observation])
    assert share(guess, size) >= least
    assert guess.images is not None
    assert guess.certified is not None
    true = DATA.train.batch(torch.arange(size)).flatten(1)
    gaps = torch.cdist(guess.images[guess.certified].flatten(1), true).amin(dim=1)
    assert float(gaps.max()) < 0.01 * float(true.norm(dim=1).min())


def test_a_deeper_network_behind_the_bins_changes_nothing() -> None:
    attack, model = Imprint(public=PUBLIC, directions=3, levels=1), network(depth=3)
    assert share(attack.run(model, DATA.task, [seen(attack, model, 40)]), 40) >= 0.9


def test_labels_and_counts_come_with_the_images() -> None:
    attack, model = Imprint(public=PUBLIC, directions=3, levels=1), network()
    guess = attack.run(model, DATA.task, [seen(attack, model, 30)])
    assert guess.class_counts is not None
    assert torch.equal(guess.class_counts, DATA.train.labels[:30].bincount(minlength=10))


def test_images_of_one_bin_are_solved_by_their_labels() -> None:
    """Two images of equal brightness and different labels are in one cell: no row shows either alone."""
    attack, model = Imprint(public=PUBLIC), network(60)
    sent = attack.craft(model, DATA.task, 1, weights_of(model))
    load_weights(model, sent)
    images, labels = DATA.train.batch(torch.arange(400)), DATA.train.labels[:400]
    place = find_place(model, DATA.task)
    bias, row = sent[f"{place.layer}.bias"], sent[f"{place.layer}.weight"][0]
    cells = (entering(model, place, sent, images) @ row)[:, None] > -bias
    counts = cells.sum(dim=1)
    first = next(i for i in range(400) if 10 < counts[i] < 50)
    second = next(j for j in range(400) if counts[j] == counts[first] and labels[j] != labels[first])
    chosen = torch.tensor([first, second])
    gradient, _ = batch_gradient(model, images[chosen], labels[chosen])
    observation = Observation(
        round=1, client=0, sent=sent, received=gradient, kind="gradient", num_examples=2
    )
    peel = Peel(readout=read(model, DATA.task, place, observation), size=2, most=2, tolerance=1e-3)
    peel.search()
    peel.drop(peel.certified())
    assert len(peel) == 0
    assert solve_bins(peel) == 2
    assert sorted(peel.labels.tolist()) == sorted(labels[chosen].tolist())
    guess = attack.run(model, DATA.task, [observation])
    assert guess.images is not None
    assert float(torch.cdist(images[chosen].flatten(1), guess.images.flatten(1)).amin(dim=1).max()) < 0.05


def test_bins_are_between_a_unit_and_the_next_of_its_direction() -> None:
    attack, model = Imprint(public=PUBLIC, directions=2, levels=1), network(10)
    observation = seen(attack, model, 4)
    above = next_above(read(model, DATA.task, find_place(model, DATA.task), observation))
    assert above.tolist() == [2, 3, 4, 5, 6, 7, 8, 9, -1, -1]


def test_a_secure_sum_keeps_the_clients_of_loki_apart() -> None:
    attack, model = Loki(public=PUBLIC, clients=4), network(160)
    honest = weights_of(model)
    parts = []
    for client in range(4):
        load_weights(model, honest)
        parts.append(seen(attack, model, 6, client=client, first=6 * client))
    total = {name: sum(part.received[name] for part in parts) / 4 for name in honest}
    load_weights(model, honest)
    broadcast = attack.craft(model, DATA.task, 1, honest)
    summed = dataclasses.replace(
        parts[0], client=-1, clients=(0, 1, 2, 3), sent=broadcast, received=total, num_examples=24
    )
    load_weights(model, broadcast)
    assert share(attack.run(model, DATA.task, [summed]), 24) >= 0.8
    alike = dataclasses.replace(summed, received=parts[0].received, num_examples=6, clients=(0,))
    assert share(attack.run(model, DATA.task, [alike]), 6) >= 0.8


def test_fishing_shows_the_target_class_and_nobody_else() -> None:
    attack, model = Fishing(public=PUBLIC, target=3), network(150)
    guess = attack.run(model, DATA.task, [seen(attack, model, 200)])
    target = DATA.train.labels[:200] == 3
    assert guess.images is not None
    assert guess.labels is not None
    assert set(guess.labels.tolist()) == {3}
    true = DATA.train.batch(torch.arange(200))[target].flatten(1)
    gaps = torch.cdist(true, guess.images.flatten(1)).amin(dim=1)
    assert float((gaps < 0.01 * true.norm(dim=1)).float().mean()) >= 0.9


def test_quiet_weights_pass_detectors_that_see_all_others() -> None:
    detector = fedsim.defense("inspect_weights")
    model = network()
    honest = weights_of(model)
    detector.on_sent(honest, None, model)
    quiet = Quiet(public=PUBLIC).craft(model, DATA.task, 1, honest)
    detector.on_sent(quiet, honest, model)
    loud: list[Crafted] = [Imprint(public=PUBLIC), Soliton(public=PUBLIC), TrapWeights(public=PUBLIC)]
    for attack in (*loud, Loki(public=PUBLIC), Fishing(public=PUBLIC)):
        sent = attack.craft(model, DATA.task, 1, honest)
        with pytest.raises(Refused, match="inspect_weights"):
            detector.on_sent(attack.tailor(model, DATA.task, 1, 0, sent), None, model)


def test_convolutions_carry_the_largest_pixel_of_every_square() -> None:
    model = fedsim.model("lenet5", task=DATA.task)
    place = find_place(model, DATA.task)
    assert place.carriage is not None
    assert not place.carriage.exact
    images = DATA.train.batch(torch.arange(3))
    features = entering(model, place, carrying(place, weights_of(model)), images)
    view = place.carriage.views[0]
    got = features[:, : view.height * view.width].view(3, view.height, view.width)
    squares = images[:, 0, view.row :, view.column :].unfold(1, view.window, view.stride)
    squares = squares.unfold(2, view.window, view.stride).amax(dim=(3, 4))[:, : view.height, : view.width]
    assert torch.allclose(got * DATA.task.std[0], squares, atol=1e-5)
    shown = place.carriage.images(features.double(), DATA.task)
    inside = (slice(None), 0, slice(8, 18), slice(8, 18))
    assert bool((shown[inside] >= images[inside] - 1e-5).all())  # a closing bounds every pixel from above


def test_pixels_that_only_strides_pass_on_arrive_exactly() -> None:
    torch.manual_seed(0)
    layers = (nn.Conv2d(1, 4, 2, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(784, 60), nn.ReLU())
    model = nn.Sequential(*layers, nn.Linear(60, 10))
    task = dataclasses.replace(DATA.task, mean=(0.0,), std=(1.0,))
    carriage = carriage_of(model, task, "3")
    assert carriage.exact
    attack = Imprint(public=PUBLIC, directions=3, levels=1)
    sent = attack.craft(model, task, 1, weights_of(model))
    load_weights(model, sent)
    images = DATA.train.batch(torch.arange(8))
    gradient, _ = batch_gradient(model, images, DATA.train.labels[:8])
    observation = Observation(
        round=1, client=0, sent=sent, received=gradient, kind="gradient", num_examples=8
    )
    assert share(attack.run(model, task, [observation]), 8) >= 0.8


def test_a_residual_network_carries_images_of_one_class_out_of_a_batch() -> None:
    data = fedsim.dataset("synthetic", shape=(3, 16, 16), num_classes=4, train_size=24, test_size=40)
    shown = PublicImages(images=data.test.batch(torch.arange(40)), labels=data.test.labels)
    attack, model = ResidualFishing(public=shown, target=2), fedsim.model("resnet18", task=data.task).eval()
    sent = attack.craft(model, data.task, 1, weights_of(model))
    load_weights(model, sent)
    images, labels = data.train.batch(torch.arange(24)), data.train.labels
    gradient, _ = batch_gradient(model, images, labels)
    seen = Observation(round=1, client=0, sent=sent, received=gradient, kind="gradient", num_examples=24)
    found = attack.run(model, data.task, [seen])
    gaps, places = torch.cdist(found.images.flatten(1), images.flatten(1)).min(dim=1)
    assert len(places.unique()) == len(places) >= 2
    assert float(gaps.max()) < 1e-3  # l2 of a whole image
    assert bool((labels[places] == 2).all())
    assert bool(found.certified.all())
    halved = {name: 0.5 * tensor for name, tensor in gradient.items()}  # no place counts a whole image
    plain = dataclasses.replace(seen, received=halved)
    with pytest.raises(FedsimError, match="alone in its bin"):
        attack.run(model, data.task, [plain])


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("softmax", {}, "hidden linear layer"),
        ("two_layer", {"activation": "tanh"}, "ReLU"),
        ("resnet20", {}, "hidden linear layer"),
    ],
)
def test_models_without_a_layer_to_read_are_refused(name: str, settings: dict[str, str], words: str) -> None:
    model = fedsim.model(name, task=DATA.task, **settings)
    with pytest.raises(FedsimError, match=words):
        Imprint().check(model, DATA.task)


def test_residual_fishing_refuses_what_its_weights_are_not_made_for() -> None:
    for name, task, words in (
        ("resnet20", dataclasses.replace(DATA.task, input_shape=(1, 32, 32)), "expected a ResNet-18"),
        ("resnet18", DATA.task, "sides of 8, 16, 24 or 32"),
    ):
        with pytest.raises(FedsimError, match=words):
            ResidualFishing().check(fedsim.model(name, task=task), task)


def test_rounds_that_were_not_crafted_are_not_attacked() -> None:
    assert [Imprint(every=3).crafts_in(round) for round in (1, 2, 3, 4)] == [True, False, False, True]
    assert [Imprint(every=0).crafts_in(round) for round in (1, 2, 3)] == [True, False, False]


def test_limits_of_honest_rounds_cry_wolf_as_often_as_asked_for() -> None:
    random = torch.Generator().manual_seed(0)
    draws = torch.rand(4000, 2, generator=random).tolist()
    rounds = [{"bias": bias, "jump": jump} for bias, jump in draws]
    limits = calibrated(rounds[:1000], 0.1)
    alarms = sum(any(signs[kind] > limits[kind] for kind in signs) for signs in rounds[1000:])
    assert 0.07 < alarms / 3000 < 0.13
    assert (
        InspectWeights(**limits).limits["bias"] == limits["bias"] == sorted(b for b, _ in draws[:1000])[950]
    )
    assert len(calibrated(rounds[:199], 0.01)) == 2
    with pytest.raises(FedsimError, match="expected at least 199 honest rounds"):
        calibrated(rounds[:198], 0.01)


def test_a_soliton_distribution_is_one() -> None:
    for size in (1, 2, 10, 500):
        chances = robust_soliton(size)
        assert float(chances.sum()) == pytest.approx(1)
        assert len(chances) == size
    assert float(robust_soliton(500)[1]) > 0.3  # degree two is the most frequent


def noisy(observation: Observation, size: float) -> Observation:
    random = torch.Generator().manual_seed(0)
    received: dict[str, Tensor] = {
        name: tensor + size * tensor.abs().mean() * torch.randn(tensor.shape, generator=random)
        for name, tensor in observation.received.items()
    }
    return dataclasses.replace(observation, received=received)


def test_noise_brings_no_false_certificates() -> None:
    attack, model = Imprint(public=PUBLIC, directions=3, levels=1), network()
    observation = noisy(seen(attack, model, 30), 1.0)
    try:
        guess = attack.run(model, DATA.task, [observation])
    except FedsimError:
        return
    assert guess.certified is not None
    assert not bool(guess.certified.any())


def test_plans_keep_the_model_s_form() -> None:
    model = network()
    place = find_place(model, DATA.task)
    inputs = entering(model, place, weights_of(model), PUBLIC.images)
    plan = Soliton(examples=50).plan(inputs, 200, torch.Generator().manual_seed(0))
    sent = crafted(place, weights_of(model), plan)
    assert {name: t.shape for name, t in sent.items()} == {
        name: t.shape for name, t in weights_of(model).items()
    }


def test_a_client_sees_that_one_example_stands_alone_in_its_gradient() -> None:
    detector, model = fedsim.defense("inspect_gradient"), network(60)
    labels = DATA.train.labels[:200]
    chosen = torch.cat([(labels != 3).nonzero()[:15, 0], (labels == 3).nonzero()[:1, 0]])
    images = DATA.train.batch(chosen)
    step = LocalStep(model=model, images=images, labels=labels[chosen])
    gradient, _ = batch_gradient(model, images, labels[chosen])
    assert detector.on_gradient(gradient, step, torch.Generator()) is gradient
    load_weights(model, Fishing(public=PUBLIC, target=3).craft(model, DATA.task, 1, weights_of(model)))
    with pytest.raises(Refused, match="inspect_gradient: one example's share"):
        detector.on_gradient(gradient, step, torch.Generator())
