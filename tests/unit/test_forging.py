"""Forgeries in small worlds: closed forms against dense references, integers against enumeration, domains."""

import copy
from dataclasses import replace
from itertools import combinations
from math import comb

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from attacks.integrity.forging import brute_force
from attacks.integrity.forging.box import Box, balanced_strengths, room
from attacks.integrity.forging.brute_force import BruteForce, Filter, colliding, same_sum, subset, subset_sums
from attacks.integrity.forging.error_matrix import ErrorMatrix
from attacks.integrity.forging.first_layer import basis, first_layer
from attacks.integrity.forging.gauss_newton import GaussNewton
from attacks.integrity.forging.greedy import Greedy
from attacks.integrity.forging.kong import Kong
from attacks.integrity.forging.lattice import Lattice, analytic_centre, integer_solution, nearest_points
from attacks.integrity.forging.nearest import Nearest
from attacks.integrity.forging.one_level import OneLevel
from attacks.integrity.forging.parallelogram import Parallelogram, fours
from attacks.integrity.forging.perturbation import Perturbation, invisible
from defenses.integrity.proof.domain import batch_problem, domain_of, same_batch
from defenses.integrity.proof.game import honest_error, judge_step
from defenses.integrity.proof.suspicion import suspicions
from fedsim.data.synthetic import synthetic
from fedsim.data.tiny import tiny
from fedsim.errors import FedsimError
from fedsim.interfaces import Challenge, Forgery, RecordedStep
from fedsim.models.lenet5 import lenet5
from fedsim.models.mlp import mlp
from fedsim.models.softmax import softmax
from fedsim.randomness import generator
from fedsim.training import Batch, batch_gradient, load_weights, sgd_step, weights_of
from fedsim.types import Task

DATA = synthetic(shape=(1, 7, 7), num_classes=4, train_size=400, test_size=40)
RATE = 0.01


def examples(indices: Tensor) -> Batch:
    levels = DATA.train.pixels[indices].double()
    return Batch(images=levels / 255, labels=DATA.train.labels[indices])


def challenge(model: nn.Module, size: int, *, unwanted: int | None = None, seed: int = 0) -> Challenge:
    """A step in float64 on grey levels."""
    order = torch.randperm(400, generator=generator(seed, "challenge"))
    return Challenge(
        model=model.double(),
        batch=examples(order[:size]),
        unwanted=torch.arange(size if unwanted is None else unwanted),
        task=DATA.task,
        owned=order[size:],
        examples=examples,
        generator=generator(seed, "forge"),
    )


def gap(asked: Challenge, claimed: Batch, dtype: torch.dtype = torch.float64) -> float:
    """Length of the difference of gradients."""
    model = copy.deepcopy(asked.model).to(dtype)

    def gradient(batch: Batch) -> Tensor:
        labels = batch.labels if batch.labels.dtype == torch.int64 else batch.labels.to(dtype)
        return torch.cat(
            [t.flatten() for t in batch_gradient(model, batch.images.to(dtype), labels)[0].values()]
        )

    return float((gradient(asked.batch) - gradient(claimed)).norm())


def network(depth: int, *, width: int = 5, bias: bool = True) -> nn.Module:
    torch.manual_seed(depth)
    model = mlp(DATA.task, depth=depth, width=width)
    if not bias:
        for module in model.modules():
            if isinstance(module, nn.Linear):
                module.bias = None
    return model


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_perturbed_batches_keep_the_gradient_at_any_depth(depth: int, bias: bool) -> None:
    asked = challenge(network(depth, bias=bias), 24)
    claimed = Perturbation().forge(asked)
    assert gap(asked, claimed) <= 1e-13
    single = Batch(images=claimed.images.float(), labels=claimed.labels)
    assert gap(asked, single, torch.float32) <= 5e-6
    moved = (claimed.images - asked.batch.images).flatten(1).abs().amax(dim=1)
    assert int((moved > 0.01).sum()) >= 22  # one that alone excites a unit cannot move
    assert domain_of(claimed, 24, DATA.task, torch.float64) == "real"
    noise = Batch(images=asked.batch.images + 0.01 * torch.randn(24, 1, 7, 7), labels=asked.batch.labels)
    assert gap(asked, noise) > 1e-5  # the twin that must miss


def test_the_closed_form_is_the_solution_of_the_linear_system() -> None:
    """Suliman et al., equations 13 and 14: vec(P) = (I - K^+ K) vec(F)."""
    layer = first_layer(network(2).double(), examples(torch.arange(16)))
    noise = torch.randn(49, 16, dtype=torch.float64, generator=generator(1))
    left = torch.kron(layer.errors.T.contiguous(), torch.eye(49, dtype=torch.float64))  # P D = 0
    right = torch.kron(torch.eye(16, dtype=torch.float64), layer.weight)  # W P = 0
    system = torch.cat([left, right])
    flat = noise.T.flatten()  # columns stacked
    solution = flat - torch.linalg.pinv(system, rtol=1e-12) @ (system @ flat)
    assert torch.allclose(invisible(noise, layer.weight.T, layer.errors).T.flatten(), solution, atol=1e-10)


def test_no_freedom_is_said() -> None:
    asked = challenge(network(2, width=30), 8)
    for forgery in (Perturbation(), Box(), Lattice()):
        with pytest.raises(FedsimError, match="Remedy"):
            forgery.forge(asked)
    torch.manual_seed(0)
    convolutional = lenet5(Task(input_shape=(1, 28, 28), num_classes=4))
    batch = Batch(images=torch.rand(2, 1, 28, 28), labels=torch.tensor([0, 1]))
    with pytest.raises(FedsimError, match=r"pixels enter a linear layer.*Remedy"):
        first_layer(convolutional, batch)


def test_other_errors_give_other_images_and_labels_with_the_same_gradient() -> None:
    asked = challenge(network(1), 20)
    claimed = ErrorMatrix().forge(asked)
    length = gap(asked, Batch(images=asked.batch.images * 0, labels=asked.batch.labels))
    assert gap(asked, claimed) <= 1e-13 * length
    assert domain_of(claimed, 20, DATA.task, torch.float64) == "real labels"
    assert torch.allclose(claimed.labels.sum(dim=1), torch.ones(20, dtype=torch.float64))
    with pytest.raises(FedsimError, match=r"expected one linear layer and at least 4 examples.*Remedy"):
        ErrorMatrix().forge(challenge(network(2), 20))


@pytest.mark.parametrize("classes", [4, 3])
def test_a_box_keeps_pixels_in_bounds_also_where_a_class_is_missing(classes: int) -> None:
    torch.manual_seed(0)
    asked = challenge(softmax(DATA.task), 60)
    chosen = asked.batch.labels < classes
    batch = Batch(images=asked.batch.images[chosen], labels=asked.batch.labels[chosen])
    asked = replace(asked, batch=batch, unwanted=torch.arange(len(batch.labels)))
    claimed = Box().forge(asked)
    assert gap(asked, claimed) <= 1e-12
    size = len(claimed.labels)
    assert batch_problem(claimed, size, DATA.task, "box", torch.float64) is None
    assert batch_problem(claimed, size, DATA.task, "uint8", torch.float64) is not None
    assert not same_batch(claimed, asked.batch)
    strengths = balanced_strengths(first_layer(asked.model, asked.batch), np.arange(size))
    assert (strengths.min() >= 0) == (classes == 4)


def test_room_is_as_much_as_pixels_leave() -> None:
    low, high = room(np.array([[0.2, 0.0], [0.5, 1.0], [0.3, 0.3]]), np.array([1.0, -0.5, 0.0]))
    assert low.tolist() == [-0.2, 0.0]
    assert high.tolist() == [0.8, 1.0]


def test_a_lattice_finds_whole_grey_levels() -> None:
    torch.manual_seed(0)
    model = softmax(DATA.task)
    asked = challenge(model, 60)
    # Pixels with room: the made-up images are grey throughout.
    claimed = Lattice(strength=8, tries=1).forge(asked)
    assert batch_problem(claimed, 60, DATA.task, "uint8", torch.float64) is None
    assert not same_batch(claimed, asked.batch)
    assert RATE * gap(asked, claimed) <= 1e-7


def test_a_lattice_changes_the_unwanted_examples_of_a_large_batch() -> None:
    torch.manual_seed(0)
    asked = replace(challenge(softmax(DATA.task), 150), unwanted=torch.tensor([3, 120, 149]))
    claimed = Lattice(strength=6, tries=1).forge(asked)
    changed = (claimed.images != asked.batch.images).flatten(1).any(dim=1)
    assert changed[[3, 120, 149]].all()
    assert int(changed.sum()) <= 110
    with pytest.raises(FedsimError, match=r"at most 110 unwanted examples, got 150.*Remedy"):
        Lattice().forge(replace(asked, unwanted=torch.arange(150)))


def test_parts_of_the_lattice_search() -> None:
    chance = np.random.default_rng(0)
    equations = chance.normal(size=(40, 2))
    low, high = np.zeros(40), np.full(40, 6.0)
    centre = analytic_centre(equations, low, high)
    assert np.abs(equations.T @ centre).max() < 1e-9
    assert (centre > 0.5).all()
    assert (centre < 5.5).all()
    whole = integer_solution(equations, low, high, chance)
    assert whole.any()
    assert (whole >= 0).all()
    assert (whole <= 6).all()
    assert np.abs(equations.T @ whole).max() < 1e-6
    rounded = np.round(centre)
    assert np.abs(equations.T @ rounded).max() > 1e-2  # the twin that must miss
    points = nearest_points(np.array([[2.0, 0.0], [1.0, 3.0]]), np.array([[4.9, 3.2], [0.1, 0.2]]))
    assert points.tolist() == [[5.0, 3.0], [0.0, 0.0]]


@pytest.mark.parametrize("make", [softmax, lambda task: mlp(task, depth=3, width=20)])
def test_labels_of_a_parallelogram_can_be_exchanged(make) -> None:
    torch.manual_seed(0)
    asked, forgery = challenge(make(DATA.task), 10, unwanted=6), Parallelogram()
    planned = replace(asked, batch=forgery.compose(asked))
    claimed = forgery.forge(planned)
    assert [len(places) for places in fours(asked)] == [4, 4]
    assert gap(planned, claimed) <= 1e-14
    assert domain_of(claimed, 10, DATA.task, torch.float64) == "uint8"
    assert torch.equal(claimed.images, planned.batch.images)
    assert int((claimed.labels != planned.batch.labels).sum()) == 8
    wrong = planned.batch.labels.clone()
    wrong[:2] = wrong[:2].flip(0).add(1) % 4
    assert gap(planned, Batch(images=claimed.images, labels=wrong)) > 1e-3
    with pytest.raises(FedsimError, match="at least 4"):
        forgery.compose(challenge(make(DATA.task), 3))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_brute_force_finds_what_enumeration_finds(size: int) -> None:
    rows = np.random.default_rng(1).integers(-2, 3, size=(13, 3)).astype(float)
    everything = sorted(combinations(range(13), size), key=lambda members: members[::-1])
    assert [subset(rank, size) for rank in range(comb(13, size))] == everything
    heights = np.random.default_rng(2).normal(size=13)
    sums = [sum(heights[list(members)]) for members in everything]
    assert np.allclose(subset_sums(heights, size), sums)
    sums_of = {members: tuple(rows[list(members)].sum(axis=0)) for members in everything}
    for wanted in (tuple(range(size)), everything[-1]):
        expected = {m for m in everything if m != wanted and sums_of[m] == sums_of[wanted]}
        assert set(same_sum(rows, wanted)) == expected
    counts = list(sums_of.values())
    assert colliding(rows, size) == (sum(counts.count(value) > 1 for value in counts), len(everything))


def test_the_filter_loses_nothing_at_the_edges_of_its_cells() -> None:
    values = np.random.default_rng(0).normal(size=2000)
    table = Filter(values, 1e-12)
    for shift in (-0.9e-12, 0.0, 0.9e-12):
        found = dict(table.matches(values + shift))
        assert [found.get(place) for place in range(2000)] == list(range(2000))
    assert list(table.matches(values + 1e-9)) == []


def test_a_black_image_without_bias_has_no_gradient_and_is_its_own_forgery() -> None:
    data = tiny(values=2)
    torch.manual_seed(0)
    model = softmax(data.task)
    model.output.bias = None
    task = data.task

    def chosen(indices: Tensor) -> Batch:
        return Batch(images=data.train.batch(indices).double(), labels=data.train.labels[indices])

    everything = torch.arange(len(data.train.labels))
    own = torch.tensor([0, 20])  # black, with class 0
    asked = Challenge(
        model=model.double(),
        batch=chosen(own),
        unwanted=torch.tensor([0]),
        task=task,
        owned=everything[~torch.isin(everything, own)],
        examples=chosen,
        generator=generator(0),
    )
    claimed = BruteForce().forge(asked)
    assert gap(asked, claimed) < 1e-15
    assert not same_batch(asked.batch, claimed)
    lit = replace(asked, batch=chosen(torch.tensor([13, 20])))
    lit = replace(lit, owned=everything[~torch.isin(everything, torch.tensor([13, 20]))])
    with pytest.raises(FedsimError, match="none of the other 1,127 batches"):
        BruteForce().forge(lit)
    with pytest.raises(FedsimError, match=r"at most 5 from at most 20000.*Remedy"):
        BruteForce().forge(challenge(network(1), 8))


def test_sampled_batches_of_the_small_world_collide_as_the_paper_does_not_say() -> None:
    """v=2, b=4, one layer with bias: some batches do share their gradient (the paper found none)."""
    data = tiny(values=2)
    torch.manual_seed(0)
    model = softmax(data.task)
    gradients = brute_force.example_gradients(model, data.train.batch(torch.arange(48)), data.train.labels)
    assert colliding(gradients, 2) == (0, 1128)
    assert colliding(gradients, 3) == (0, 17_296)
    assert colliding(gradients, 4) == (600, 194_580)


def test_grey_levels_are_exact_where_float32_rounds_them() -> None:
    """1/3 + 2/3 = 1 + 0 in grey levels, and not in float32: collisions that would be missed."""
    data = tiny(values=4, side=1)
    torch.manual_seed(0)
    images = data.train.batch(torch.arange(12))
    gradients = brute_force.example_gradients(softmax(data.task), images, data.train.labels)
    assert colliding(gradients, 4) == (6, 495)


def test_one_grey_level_where_a_convolutional_network_does_not_look() -> None:
    torch.manual_seed(0)
    task = Task(input_shape=(1, 28, 28), num_classes=10, mean=(0.1,), std=(0.3,))
    images = torch.zeros(3, 1, 28, 28, dtype=torch.float64)
    images[:, :, 8:20, 8:20] = 1
    asked = replace(
        challenge(lenet5(task), 3), batch=Batch(images=images, labels=torch.tensor([0, 1, 2])), task=task
    )
    claimed = OneLevel().forge(asked)
    assert ((claimed.images != images).flatten(1).sum(dim=1) == 1).all()
    assert gap(asked, claimed) < 1e-3
    alone = OneLevel().forge(replace(asked, unwanted=torch.arange(0)))
    assert int((alone.images != images).sum()) == 1  # nobody in particular: the easiest


def smooth_net() -> nn.Module:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Conv2d(1, 2, 3, stride=2), nn.Tanh(), nn.Flatten(), nn.Linear(18, 4))
    return model.double()


def test_gauss_newton_finds_other_images_in_the_box_for_a_convolutional_network() -> None:
    asked = challenge(smooth_net(), 6)  # 294 pixels, a gradient of 96 numbers
    claimed = GaussNewton().forge(asked)
    assert gap(asked, claimed) < 1e-10
    assert batch_problem(claimed, 6, DATA.task, "box", torch.float64) is None
    assert float((claimed.images - asked.batch.images).square().mean().sqrt()) > 0.02
    levels = Batch(images=torch.round(claimed.images * 255) / 255, labels=claimed.labels)
    assert gap(asked, levels) > 1e-5  # not whole grey levels, and far off when rounded to them
    partly = challenge(smooth_net(), 6, unwanted=4)
    kept = GaussNewton().forge(partly)
    assert torch.equal(kept.images[4:], partly.batch.images[4:])
    assert gap(partly, kept) < 1e-10


@pytest.mark.parametrize("forgery", [Greedy(candidates=3), Kong(examples=50, candidates=50), Nearest()])
def test_searches_replace_the_unwanted_examples_and_no_others(forgery: Forgery) -> None:
    asked = challenge(network(2), 12, unwanted=5)
    claimed = forgery.forge(asked)
    assert torch.equal(claimed.images[5:], asked.batch.images[5:])
    for place in range(5):
        assert not bool((claimed.images == asked.batch.images[place]).flatten(1).all(dim=1).any())
    assert domain_of(claimed, 12, DATA.task, torch.float64) == "uint8"
    if isinstance(forgery, Nearest):
        assert torch.equal(claimed.labels, asked.batch.labels)
    with pytest.raises(FedsimError, match=r"12 examples to replace, 3 others at hand.*Remedy"):
        forgery.forge(replace(challenge(network(2), 12), owned=torch.arange(3)))


def test_kong_finds_the_best_single_replacement_of_all_that_it_looks_at() -> None:
    asked = challenge(network(2), 12, unwanted=1)
    claimed = Kong(examples=388).forge(asked)
    best = min(
        gap(
            asked,
            Batch(
                images=torch.cat([one.images, asked.batch.images[1:]]),
                labels=torch.cat([one.labels, asked.batch.labels[1:]]),
            ),
        )
        for one in (examples(asked.owned[place : place + 1]) for place in range(388))
    )
    assert gap(asked, claimed) == pytest.approx(best)


def recorded(asked: Challenge, precision: str = "float32") -> RecordedStep:
    before = weights_of(asked.model)
    sgd_step(asked.model, asked.batch, RATE)
    after = weights_of(asked.model)
    load_weights(asked.model, before)
    return RecordedStep(
        model=asked.model,
        before=before,
        after=after,
        batch=asked.batch,
        unwanted=asked.unwanted,
        task=asked.task,
        learning_rate=RATE,
        precision=precision,
        threads=1,
    )


FORGERIES = [
    Greedy(candidates=2),
    Nearest(),
    Perturbation(),
    ErrorMatrix(),
    Box(),
    Lattice(strength=8, tries=1),
    Parallelogram(tries=5),
    OneLevel(tries=3),
]


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.integers(0, 10_000), st.sampled_from(FORGERIES), st.sampled_from(["uint8", "box", "real"]))
def test_what_the_verifier_accepts_is_valid_other_data_with_an_error_of_its_own_measuring(
    seed: int, forgery: Forgery, domain: str
) -> None:
    torch.manual_seed(seed)
    asked = challenge(softmax(DATA.task), 40, seed=seed)
    asked = replace(asked, batch=forgery.compose(asked))
    step = recorded(asked)
    try:
        claimed = forgery.forge(asked)
    except FedsimError:
        return  # no forgery, no claim
    verdict = judge_step(step, claimed, domain, None)
    load_weights(asked.model, step.before)
    assert verdict.error == pytest.approx(RATE * gap(asked, claimed), rel=0.5, abs=1e-15)
    order = {"uint8": 0, "box": 1, "real": 2, "real labels": 3, "none": 4}
    assert order[verdict.domain] <= (order[forgery.pixels] if forgery.classes else 3)  # as the forgery says
    if verdict.domain == "uint8":
        levels = claimed.images * 255
        assert torch.equal(torch.round(levels) / 255, claimed.images)
        assert float(claimed.images.min()) >= 0
        assert float(claimed.images.max()) <= 1
    if verdict.accepted:
        assert claimed.labels.dtype == torch.int64
        assert 0 <= int(claimed.labels.min()) <= int(claimed.labels.max()) < 4
        assert not same_batch(asked.batch, claimed)
        assert verdict.error <= verdict.delta
        assert order[verdict.domain] <= order[domain]
        assert verdict.gone == 40
        for image, label in zip(asked.batch.images, asked.batch.labels, strict=True):
            alike = (claimed.images == image).flatten(1).all(dim=1) & (claimed.labels == label)
            assert not bool(alike.any())


def test_each_check_of_the_game_is_named() -> None:
    torch.manual_seed(0)
    asked = challenge(softmax(DATA.task), 8)
    step = recorded(asked)
    own = asked.batch
    order = torch.randperm(8, generator=generator(0))

    def check(batch: Batch, domain: str = "uint8") -> str:
        return judge_step(step, batch, domain, None).check

    assert check(Batch(images=own.images[order], labels=own.labels[order])) == "distinct"
    assert check(Batch(images=own.images + 1e-4, labels=own.labels)) == "domain"
    assert check(Batch(images=own.images.clamp(0.1, 0.9), labels=own.labels), "box") == "step"
    assert check(Batch(images=own.images, labels=nn.functional.one_hot(own.labels).double())) == "domain"
    assert check(Batch(images=own.images * float("nan"), labels=own.labels), "real") == "domain"
    assert check(Batch(images=own.images[:, :, :3], labels=own.labels)) == "domain"
    assert check(Batch(images=own.images.flatten(1), labels=own.labels)) == "domain"
    assert check(Batch(images=own.images[:0], labels=own.labels[:0])) == "domain"
    assert check(Batch(images=own.images.float(), labels=own.labels)) == "domain"
    assert check(Batch(images=own.images, labels=own.labels + 4)) == "domain"
    signed = torch.where(own.images == 0, -0.0, own.images)
    assert bool((own.images == 0).any())
    assert check(Batch(images=signed, labels=own.labels)) == "distinct"
    some = own.images.clone()
    some[0, 0, 0, 0] = 1 - some[0, 0, 0, 0]
    assert check(Batch(images=some, labels=own.labels)) == "gone"
    assert check(Batch(images=own.images[:3], labels=own.labels[:3])) == "domain"
    assert honest_error(step) < 1e-15
    assert (
        judge_step(step, Batch(images=own.images[:3], labels=own.labels[:3]), "real", None).domain == "none"
    )
    loose = judge_step(step, Greedy(candidates=2).forge(asked), "uint8", 1e9)
    assert loose.accepted
    assert loose.error > 1e-5


def test_suspicions_see_what_they_are_meant_to_see() -> None:
    dark = torch.zeros(1, 7, 7)
    dark[:, 2:5, 2:5] = 1
    reference = Batch(images=DATA.test.batch(torch.arange(40)) * dark, labels=DATA.test.labels[:40])
    honest = Batch(images=DATA.train.batch(torch.arange(12)) * dark, labels=DATA.train.labels[:12])
    lit = Batch(images=honest.images.clone(), labels=honest.labels)
    lit.images[:6, :, 0, 0] = 0.5
    lit.images[6:, :, 0, 0] = -0.5  # light of either sign
    twins = Batch(images=honest.images.clone(), labels=honest.labels)
    twins.images[1] = twins.images[0]
    wrong = Batch(images=honest.images, labels=(honest.labels + 1) % 4)
    usual = suspicions(honest, reference)
    assert usual["dark pixels lit"] == 0
    assert suspicions(lit, reference)["dark pixels lit"] == pytest.approx(0.5 / 49)
    assert suspicions(twins, reference)["near duplicates"] > usual["near duplicates"] + 3
    assert suspicions(wrong, reference)["label against neighbours"] > usual["label against neighbours"] + 0.3


def test_first_layer_reads_weights_with_the_normalisation_in_them() -> None:
    model = network(2).double()
    batch = examples(torch.arange(6))
    layer = first_layer(model, batch)
    gradient, _ = batch_gradient(model, batch.images, batch.labels)
    inputs = (batch.images.flatten(1) - 0.5) / 0.25
    assert torch.allclose(layer.errors.T @ inputs / 6, gradient["hidden1.weight"])
    assert torch.allclose(layer.weight, model.hidden1.weight * 4)
    assert not layer.only
    assert first_layer(network(1).double(), batch).only
    assert basis(torch.ones(5, 3, dtype=torch.float64)).shape == (5, 1)
