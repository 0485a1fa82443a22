"""What a verifier measures, one figure at a time: distances, initial weights, domains, suspicions."""

import math
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from fedsim.contracts import check_audit, small_work
from fedsim.core.errors import FedsimError
from fedsim.core.randomness import generator
from fedsim.core.training import Batch, Trace, honest
from fedsim.core.types import Task
from fedsim.defenses.integrity.proof.distances import distance
from fedsim.defenses.integrity.proof.domain import batch_problem, domain_of, same_batch
from fedsim.defenses.integrity.proof.expected import Thoroughness, Work
from fedsim.defenses.integrity.proof.initialisation import initial_problem, uniform_reach
from fedsim.defenses.integrity.proof.proof_of_learning import ProofOfLearning
from fedsim.defenses.integrity.proof.sampling import chosen_places
from fedsim.defenses.integrity.proof.suspicion import disagreement, lit_dark_pixels, near_duplicates
from fedsim.defenses.integrity.proof.verify import _check_steps, recompute


def test_distances_are_over_all_tensors_together() -> None:
    one = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([[3.0]])}
    other = {"b": torch.tensor([[7.0]]), "a": torch.tensor([1.0, 5.0])}
    assert distance("l1", one, other) == 7
    assert distance("l2", one, other) == 5
    assert distance("linf", one, other) == 4
    cosine = (1 + 10 + 21) / math.sqrt(14 * 75)
    assert distance("cosine", one, other) == pytest.approx(1 - cosine)
    assert distance("l2", one, one) == 0


def test_only_uniform_draws_have_a_reach() -> None:
    flat = (torch.rand(50_000, generator=generator(0), dtype=torch.float64) - 0.5) * 4
    assert uniform_reach(flat) == pytest.approx(2, rel=1e-3)
    assert uniform_reach(flat) > float(flat.abs().max())
    assert uniform_reach(torch.randn(5000, generator=generator(1)).double()) is None


def drawn(number: int) -> dict[str, Tensor]:
    """Weights as a model begins with them: uniform, normal, constant."""
    return {
        "uniform": torch.rand(30, 30, generator=generator(number, "uniform")) - 0.5,
        "normal": torch.randn(30, 30, generator=generator(number, "normal")),
        "constant": torch.ones(5),
    }


def test_weights_that_were_trained_are_told_from_fresh_ones() -> None:
    assert [initial_problem(drawn(100 + number), drawn) for number in range(20)] == [None] * 20
    own = drawn(100)
    moved = own["uniform"].clone()
    moved[3, 4] = 0.51
    assert "'uniform' reaches 0.51" in str(initial_problem({**own, "uniform": moved}, drawn))
    wider = initial_problem({**own, "normal": own["normal"] * 1.3}, drawn)
    assert "'normal': a Kolmogorov-Smirnov test" in str(wider)
    assert "expected 1 everywhere" in str(initial_problem({**own, "constant": torch.zeros(5)}, drawn))


def test_the_largest_of_all_recomputed_steps_is_the_verdicts_distance() -> None:
    work = small_work()
    done = honest(work)
    blurred = tuple(
        {name: tensor + 10.0**-place * torch.ones_like(tensor) for name, tensor in weights.items()}
        for place, weights in enumerate(done.trace.checkpoints)
    )
    trace = replace(done.trace, checkpoints=blurred)
    gaps = [recompute(trace, place, work.model, [done.batches[place]], "l2") for place in range(4)]
    found, expected = Work(), SimpleNamespace(plain=(work.model, work.task), commitment=None)
    how = Thoroughness(top=2, random=2, delta=1e9, strict=False)
    _check_steps(trace, expected, how, lambda steps, _: [done.batches[s] for s in steps], generator(0), found)
    assert found.largest == max(gaps) > min(gaps) > 0
    assert found.steps == 4


@pytest.mark.parametrize(("top", "random"), [(0, 1), (1, 0)])
def test_a_step_by_size_or_one_by_chance_is_enough_to_audit(top: int, random: int) -> None:
    audit = ProofOfLearning(top=top, random=random)
    check_audit(audit)
    assert (audit.how.top, audit.how.random, audit.pin_learning_rate, audit.keep) == (top, random, True, True)
    with pytest.raises(FedsimError, match="at least one step to do again"):
        ProofOfLearning(top=0, random=0)


TASK = Task(input_shape=(1, 2, 2), num_classes=3)


def levels(*changes: tuple[int, float], labels: tuple[int, ...] = (0, 2)) -> Batch:
    """Two images of grey levels, with some pixels otherwise."""
    pixels = torch.tensor([0, 51, 102, 153, 204, 255, 0, 255]) / 255
    for place, value in changes:
        pixels[place] = value
    return Batch(images=pixels.view(2, 1, 2, 2), labels=torch.tensor(labels))


@pytest.mark.parametrize(
    ("batch", "words", "domain"),
    [
        (levels(), None, "uint8"),
        (levels((1, 0.3001)), "whole grey levels", "box"),
        (levels((1, -0.2)), r"in \[0, 1\]", "real"),
        (levels((0, -0.0)), r"in \[0, 1\]", "real"),
        (levels((5, 1.2)), r"in \[0, 1\]", "real"),
        (levels((5, math.inf)), "finite", "none"),
        (levels(labels=(-1, 2)), "labels from 0 to 2", "none"),
        (levels(labels=(0, 3)), "labels from 0 to 2", "none"),
        (levels(labels=(0, 1, 2)), "2 labels of int64, got .3,.", "none"),
        (replace(levels(), labels=torch.tensor([0, 1], dtype=torch.int32)), "of torch.int32", "none"),
        (replace(levels(), images=levels().images.double()), "got .* of float64", "none"),
        (replace(levels(), images=levels().images[:1]), r"expected images \(2, 1, 2, 2\)", "none"),
        (replace(levels(), labels=torch.rand(2, 3)), "labels of int64", "real labels"),
        (replace(levels(), labels=torch.rand(2, 2)), "labels of int64", "none"),
    ],
)
def test_what_keeps_a_batch_from_being_data(batch: Batch, words: str | None, domain: str) -> None:
    problem = batch_problem(batch, 2, TASK, "uint8")
    assert problem is None if words is None else re.search(words, str(problem))
    assert domain_of(batch, 2, TASK) == domain


def test_a_batch_is_the_same_in_any_order_and_not_with_other_labels() -> None:
    turned = Batch(images=levels().images.flip(0), labels=levels().labels.flip(0))
    assert same_batch(levels(), turned)
    assert same_batch(levels(), levels((0, -0.0)))
    assert not same_batch(levels(), replace(turned, labels=levels().labels))
    assert not same_batch(levels(), levels((1, 52 / 255)))


def test_suspicions_of_hand_made_batches() -> None:
    images = torch.zeros(3, 1, 2, 2)
    images[:, :, 0, 1], images[0, 0, 1, 0] = 1.0, 0.5
    reference = Batch(images=images, labels=torch.tensor([0, 0, 1]))
    lit = images.clone()
    lit[0, 0, 0, 0], lit[1, 0, 0, 1] = 0.6, 0.8  # light where all is dark, and its lack where all is bright
    assert lit_dark_pixels(reference, reference) == 0
    assert lit_dark_pixels(replace(reference, images=lit), reference) == pytest.approx(0.8 / 12)
    apart = torch.tensor([0.0, 0.1, 0.9]).view(3, 1, 1, 1)
    assert near_duplicates(Batch(images=apart, labels=torch.zeros(3))) == pytest.approx(1, abs=1e-4)
    assert near_duplicates(Batch(images=apart[:1], labels=torch.zeros(1))) == 0
    shades = Batch(
        images=torch.tensor([0.0, 0.1, 0.2, 0.8, 0.9, 1.0, 0.3, 0.7]).view(8, 1, 1, 1),
        labels=torch.tensor([0, 0, 0, 1, 1, 1, 0, 1]),
    )
    asked = Batch(
        images=torch.tensor([0.05, 0.95, 0.9, 0.1]).view(4, 1, 1, 1), labels=torch.tensor([0, 1, 0, 0])
    )
    assert disagreement(asked, shades) == 0.25
    assert disagreement(replace(asked, labels=torch.rand(4, 2)), shades) == 1
    texts = Batch(images=torch.tensor([[3, 0]]), labels=torch.tensor([[1, 2]]))  # tokens, and the next ones
    assert lit_dark_pixels(texts, texts) == disagreement(texts, texts) == 0


def test_epochs_are_counted_in_steps_also_where_checkpoints_are_rare() -> None:
    sizes = [1.0, 2.0, 4.0, 3.0, 5.0, 6.0]
    places = torch.tensor([0.0, *sizes]).cumsum(0)
    trace = Trace(
        checkpoints=tuple({"w": place[None]} for place in places),
        every=2,
        learning_rate=0.1,
        indices=((0,),) * 12,
        digests=("",) * 12,
    )
    assert chosen_places(trace, Thoroughness(top=1, random=0, epoch=4), generator(0)) == [1, 2, 5]
