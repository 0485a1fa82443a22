"""What a search begins with and ends with: labels, images to start from, the candidate that is taken."""

import dataclasses
import math
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

import fedsim
from fedsim.attacks.privacy.labels.ilrg import ILRG
from fedsim.attacks.privacy.matching import watch as watch_module
from fedsim.attacks.privacy.matching.labels import (
    FixedLabels,
    Given,
    Joint,
    Restored,
    _in_turn,
    agreeing,
)
from fedsim.attacks.privacy.matching.matching import Matching
from fedsim.attacks.privacy.matching.objectives import Euclidean
from fedsim.attacks.privacy.matching.optimisers import Adam
from fedsim.attacks.privacy.matching.outcome import TRACE, _thinned, reconstruction
from fedsim.attacks.privacy.matching.starts import Normal, Uniform
from fedsim.attacks.privacy.matching.watch import Diverged, TimeIsUp, Watch
from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Attack
from fedsim.core.randomness import generator
from fedsim.core.types import Observation, Reconstruction, Task
from fedsim.models.mlp import mlp

TASK = Task(input_shape=(1, 4, 4), num_classes=3, mean=(0.3,), std=(0.4,))


def seen_batch(size: int = 3, **told: object) -> tuple[nn.Module, Tensor, Tensor, Observation]:
    torch.manual_seed(0)
    model = mlp(TASK, width=7).eval()
    images = torch.rand(size, 1, 4, 4, generator=generator(1))
    labels = torch.arange(size) % 3
    seen = fedsim.observe(model, images, labels)
    return model, images, labels, dataclasses.replace(seen, **told)


def problem_of(model: nn.Module, seen: Observation, labels: Tensor | None, **parts: object):
    source = Joint() if labels is None else Given(labels=labels.tolist())
    usual = {"objective": Euclidean(), "labels": source, "start": Normal(), "optimiser": Adam()}
    attack = Matching(**(usual | {"double": True} | parts))
    fixed = None if labels is None else FixedLabels(labels=labels, recovered=None)
    return attack, attack._problem(model, TASK, seen, fixed)


class Told(Attack):
    """A label attack that says what it is told to."""

    def __init__(self, **found: Tensor) -> None:
        self.found = found

    def run(self, model: object, task: Task, observations: object) -> Reconstruction:
        return Reconstruction(**self.found)


def test_restored_counts_are_repaired_or_dealt_from_presence() -> None:
    model, _, _, seen = seen_batch(6)
    counts = torch.tensor([1, 0, 2])
    fixed = Restored(attack=Told(class_counts=counts)).fixed(model, TASK, [seen])
    assert fixed.labels.tolist() == [0, 0, 2, 2, 2, 2]  # six of them, in these shares
    unknown = dataclasses.replace(seen, num_examples=None)
    assert Restored(attack=Told(class_counts=counts)).fixed(model, TASK, [unknown]).labels.tolist() == [
        0,
        2,
        2,
    ]
    present = Told(
        class_counts=torch.zeros(3, dtype=torch.int64), class_presence=torch.tensor([False, True, True])
    )
    assert Restored(attack=present).fixed(model, TASK, [seen]).labels.tolist() == [1, 2, 1, 2, 1, 2]
    assert Restored(attack=present).fixed(model, TASK, [unknown]).labels.tolist() == [1, 2]
    with pytest.raises(FedsimError, match="restored no label"):
        Restored(attack=Told(class_presence=torch.zeros(3, dtype=torch.bool))).fixed(model, TASK, [seen])
    steps = dataclasses.replace(seen, kind="update", local_steps=2, learning_rate=1.0)
    given = Given(labels=[0, 0, 1, 1, 2, 2]).fixed(model, TASK, [steps])
    assert given.labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert _in_turn(torch.arange(5), 1).tolist() == [0, 1, 2, 3, 4]
    assert Given(labels=[2, 0]).fixed(model, TASK, [seen]).labels.tolist() == [2, 0]


def test_labels_that_came_with_images_stay_with_them() -> None:
    fixed = FixedLabels(labels=torch.tensor([0, 1, 1, 2]), recovered=Reconstruction())
    begun = Reconstruction(labels=torch.tensor([2, 1]))
    found = agreeing(fixed, begun)
    assert found.labels.tolist() == [2, 1, 0, 1]
    assert found.recovered is fixed.recovered
    whole = Reconstruction(labels=torch.tensor([2, 2, 2, 2]), class_counts=torch.tensor([0, 0, 4]))
    found = agreeing(fixed, whole)
    assert (found.labels.tolist(), found.recovered) == ([2, 2, 2, 2], whole)
    told = dataclasses.replace(fixed, recovered=None)  # given: never claimed
    assert agreeing(told, whole).recovered is None
    assert agreeing(told, whole).labels.tolist() == [2, 2, 2, 2]


def test_shared_labels_are_whole_counts_of_the_shares() -> None:
    logits = torch.tensor([[0.5, 0.25, 0.25]]).log()
    found = Joint(shared=True).read(logits, 8)
    assert found.class_counts.tolist() == [4, 2, 2]
    assert Joint().read(torch.eye(3)[[0, 2, 2]], 3).class_counts.tolist() == [1, 0, 2]
    assert Joint(shared=True).draw(8, TASK, generator(0)).shape == (1, 3)
    assert Joint().draw(8, TASK, generator(0)).shape == (8, 3)


def test_images_to_start_from_are_in_every_candidate() -> None:
    model, images, labels, seen = seen_batch(3)
    attack, problem = problem_of(model, seen, labels, candidates=2)
    begun = Reconstruction(images=images[:2])
    (point,) = attack._begin(problem, begun, generator(5))
    pixels = problem.parametrisation.pixels(point)
    for candidate in pixels.split(3):
        assert torch.allclose(candidate[:2].float(), images[:2], atol=1e-6)
    (plain,) = attack._begin(problem, None, generator(5))
    assert torch.equal(plain[[2, 5]], point[[2, 5]])
    assert not torch.equal(plain[0], point[0])
    _, searched = problem_of(model, seen, None)
    searching, _ = problem_of(model, seen, None)
    assert [tuple(v.shape) for v in searching._begin(searched, None, generator(5))] == [(3, 1, 4, 4), (3, 3)]


def test_the_candidate_with_the_nearest_gradient_is_taken() -> None:
    model, images, labels, seen = seen_batch(3)
    attack, problem = problem_of(model, seen, labels, candidates=3)
    truth = (images.double() - 0.3) / 0.4
    watch = Watch(math.inf, lambda done, note: None)
    watch.see(1.0, [torch.cat([truth + 1, truth, truth - 1])])
    how = {"ensemble": False, "prior_alone": None, "seconds": 0.0}
    given = FixedLabels(labels=labels, recovered=None)
    found = reconstruction(problem, watch, given, attack.labels, **how)
    assert torch.allclose(found.images, images, atol=1e-6)
    assert found.residual < 1e-5
    assert found.class_counts is None
    claimed = FixedLabels(labels=labels, recovered=Reconstruction(class_counts=torch.tensor([1, 1, 1])))
    found = reconstruction(problem, watch, claimed, attack.labels, **how)
    assert found.class_counts.tolist() == [1, 1, 1]


def test_labels_must_be_as_many_as_images() -> None:
    model, _, labels, seen = seen_batch(3)
    with pytest.raises(FedsimError, match="expected 3 labels, got 2"):
        problem_of(model, seen, labels[:2])
    steps = dataclasses.replace(seen, kind="update", local_steps=2, learning_rate=1.0)
    with pytest.raises(FedsimError, match="3 examples do not divide into 2 local steps"):
        problem_of(model, steps, labels)
    unknown = dataclasses.replace(seen, num_examples=None)
    assert problem_of(model, unknown, labels)[1].size == 3
    with pytest.raises(FedsimError, match="do not disclose their batch size"):
        problem_of(model, unknown, None)
    told = Restored(attack=ILRG()).fixed(model, TASK, [seen])
    assert len(told.labels) == 3


def test_a_watch_keeps_the_best_and_forgets(monkeypatch) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(watch_module.time, "perf_counter", lambda: clock.now)
    told = []
    watch = Watch(10.0, lambda done, note: told.append((done, note)))
    point = torch.zeros(2)
    for now, value in ((0.05, 3.0), (1.0, 1.0), (1.05, 2.0), (2.0, 1.0)):
        clock.now = now
        point += 1
        watch.see(value, [point])
    assert (watch.value, watch.best[0].tolist(), watch.trace) == (1.0, [2, 2], [3, 1, 2, 1])
    assert told == [(2, "objective 1"), (4, "objective 1")]
    with pytest.raises(Diverged):
        watch.see(math.nan, [point])
    clock.now = 10.0
    watch.check_time()
    clock.now = 10.1
    with pytest.raises(TimeIsUp):
        watch.see(0.5, [point])
    assert watch.value == 0.5
    watch.forget()
    assert (watch.value, watch.best, watch.trace) == (math.inf, [], [])


def test_a_long_curve_is_thinned_and_keeps_its_end() -> None:
    assert _thinned([1.0] * TRACE) == (1.0,) * TRACE
    for length in (TRACE + 1, 10 * TRACE, 10 * TRACE + 7):
        found = _thinned([float(place) for place in range(length)])
        assert TRACE / 2 <= len(found) <= TRACE + 1
        assert (found[0], found[-1]) == (0, length - 1)


def test_starts_have_the_deviation_that_they_say() -> None:
    task = Task(input_shape=(1, 40, 40), num_classes=2)
    normal = Normal(deviation=0.3).draw(5, task, generator(2))
    assert float(normal.std()) == pytest.approx(0.3, rel=0.05)
    assert float(normal.mean()) == pytest.approx(0, abs=0.02)
    uniform = Uniform().draw(5, task, generator(2))
    assert -1 <= float(uniform.min()) < -0.99
    assert 0.99 < float(uniform.max()) <= 1


def test_a_model_without_linear_layers_has_no_span() -> None:
    model = nn.Sequential(nn.Conv2d(1, 3, 4), nn.Flatten())
    spanning = Matching(
        objective=Euclidean(), labels=Joint(), start=Normal(), optimiser=Adam(), parametrisation="span"
    )
    with pytest.raises(FedsimError, match="no linear layer"):
        spanning.check(model, TASK)
