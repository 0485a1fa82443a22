"""Forgeries by search: brute force against enumeration, greedy replacements."""

from dataclasses import replace
from itertools import combinations
from math import comb

import numpy as np
import pytest
import torch
from small_world import DATA, challenge, examples, gap, network
from torch import Tensor, nn

from fedsim.attacks.integrity.forging import brute_force
from fedsim.attacks.integrity.forging.brute_force import (
    BruteForce,
    Filter,
    colliding,
    example_gradients,
    same_sum,
    subset,
    subset_sums,
)
from fedsim.attacks.integrity.forging.greedy import Greedy
from fedsim.attacks.integrity.forging.kong import Kong
from fedsim.attacks.integrity.forging.nearest import Nearest
from fedsim.attacks.integrity.forging.one_level import OneLevel
from fedsim.core.challenges import Challenge
from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Forgery
from fedsim.core.randomness import generator
from fedsim.core.training import Batch, batch_gradient
from fedsim.data.tiny import tiny
from fedsim.defenses.integrity.proof.domain import domain_of, same_batch
from fedsim.models.softmax import softmax


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


def test_one_level_takes_the_pixel_that_the_gradient_sees_least() -> None:
    asked = challenge(network(2), 6, unwanted=1)
    image = asked.batch.images[0].clone()
    each = []
    for pixel in range(49):
        moved = torch.round(image * 255).flatten()
        moved[pixel] += 1 if moved[pixel] < 255 else -1
        images = torch.cat([(moved / 255).view(1, 1, 7, 7), asked.batch.images[1:]])
        each.append(gap(asked, Batch(images=images, labels=asked.batch.labels)))
    claimed = OneLevel(tries=49).forge(asked)
    assert gap(asked, claimed) == pytest.approx(min(each), rel=1e-6)
    moved = torch.round(255 * (claimed.images - asked.batch.images)).abs()
    assert (int(moved.sum()), int(moved[0].sum())) == (1, 1)
    assert min(each) < sorted(each)[24]


@pytest.mark.parametrize("depth", [1, 2])
def test_a_single_example_can_be_read_off_its_gradient(depth: int) -> None:
    """Suliman et al., proposition 1: with biases no other single example has the same gradient."""
    asked = challenge(network(depth), 12)
    for image, label in zip(asked.batch.images, asked.batch.labels, strict=True):
        gradient, _ = batch_gradient(asked.model, image[None], label[None])
        weight, bias, *rest = gradient.values()
        unit = int(bias.abs().argmax())
        assert bias[unit] != 0  # where all units are off, the first layer has nothing to tell
        seen = weight[unit] / bias[unit]
        assert torch.allclose(asked.model[0](image[None]).flatten(), seen, atol=1e-9)
        last = [bias, *rest][-1]
        assert (last < 0).nonzero().flatten().tolist() == [int(label)]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_without_a_bias_there_are_more_twins_and_they_can_be_counted(size: int) -> None:
    """Table IV without biases.

    A black image has the gradient 0 with every label: 3 C(n - 3, b - 1) + 3 C(n - 3, b - 2) batches. And of
    three examples with x1 + x2 = x3 the labels a, a, b can be exchanged: 25 pairs of disjoint images.
    """
    data = tiny(values=2)
    torch.manual_seed(3)
    plain = nn.Sequential(nn.Flatten(), nn.Linear(4, 3, bias=False)).double()
    everything = torch.arange(48)
    gradients = example_gradients(plain, data.train.batch(everything), data.train.labels)
    black = 3 * comb(45, size - 1) + (3 * comb(45, size - 2) if size > 1 else 0)
    assert colliding(gradients, size) == (black + (25 * 6 if size == 3 else 0), comb(48, size))
