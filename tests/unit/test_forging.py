"""Forgeries in a small world: closed forms against dense references, grey levels, convolutions."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from small_world import DATA, challenge, examples, gap, network

from fedsim.attacks.integrity.forging.box import Box, balanced_strengths, room
from fedsim.attacks.integrity.forging.error_matrix import ErrorMatrix
from fedsim.attacks.integrity.forging.first_layer import basis, first_layer
from fedsim.attacks.integrity.forging.lattice import (
    Lattice,
    analytic_centre,
    balanced_strength,
    integer_solution,
    nearest_points,
    positive_support,
    whole_strengths,
)
from fedsim.attacks.integrity.forging.one_level import OneLevel
from fedsim.attacks.integrity.forging.parallelogram import Parallelogram, fours
from fedsim.attacks.integrity.forging.perturbation import Perturbation, invisible
from fedsim.core.errors import FedsimError
from fedsim.core.randomness import generator
from fedsim.core.training import Batch, batch_gradient
from fedsim.core.types import Task
from fedsim.defenses.integrity.proof.domain import batch_problem, domain_of, same_batch
from fedsim.models.lenet5 import lenet5
from fedsim.models.mlp import mlp
from fedsim.models.softmax import softmax


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


def test_strengths_are_as_large_as_pixels_leave_room_for() -> None:
    dark, grey = np.zeros((100, 300), dtype=np.int64), np.full((100, 300), 30)
    grey[::2] = 225  # little room on either side
    assert balanced_strength(dark, 3, 3, 110) > balanced_strength(grey, 3, 3, 110)
    assert balanced_strength(dark, 3, 30, 240) < balanced_strength(dark, 3, 3, 110)


def test_strengths_stay_at_0_where_no_others_cancel_an_error() -> None:
    errors = np.array([[1.0, 0.0], [-1.0, 0.0], [2.0, 0.0], [0.0, 1.0]])  # the last is alone in the second
    needed = np.array([True, False, False, False])
    assert positive_support(errors, needed, 8).tolist() == [True, True, True, False]
    with pytest.raises(FedsimError, match="no strengths from 1 to 8 cancel the errors of 1 examples"):
        positive_support(errors, np.array([False, False, False, True]), 8)
    two = np.array([[1.0], [1.0], [-1.0]])  # the third balances two at once, and has no room for more
    assert positive_support(two, np.zeros(3, dtype=bool), 2).tolist() == [True, True, True]
    found = whole_strengths(errors, needed, 8, np.random.default_rng(0))
    assert found[0] >= 1
    assert found[3] == 0
    assert np.abs(errors.T @ found).max() == 0


def test_a_lattice_finds_whole_grey_levels() -> None:
    torch.manual_seed(0)
    model = softmax(DATA.task)
    asked = challenge(model, 60)
    # Pixels with room: the made-up images are grey throughout.
    claimed = Lattice(strength=8, tries=1).forge(asked)
    assert batch_problem(claimed, 60, DATA.task, "uint8", torch.float64) is None
    assert not same_batch(claimed, asked.batch)
    assert 0.01 * gap(asked, claimed) <= 1e-7  # of the update


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
    wide = np.where(np.arange(40) % 3, 6.0, 300.0)
    middle = analytic_centre(equations, low, wide)
    slope = 1 / (middle - low) - 1 / (wide - middle)  # of the logarithms: nothing along the solutions
    assert np.abs(slope - equations @ np.linalg.lstsq(equations, slope, rcond=None)[0]).max() < 1e-6
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
