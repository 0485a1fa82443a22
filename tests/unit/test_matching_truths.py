"""The formulas of gradient matching against slow truths: autograd, explicit loops, torch's own layers."""

import dataclasses
import itertools
import math
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import fedsim
from fedsim.attacks.privacy.matching import levenberg_marquardt
from fedsim.attacks.privacy.matching.labels import (
    FixedLabels,
    Given,
    Joint,
)
from fedsim.attacks.privacy.matching.levenberg_marquardt import (
    LevenbergMarquardt,
    conjugate_gradients,
    residuals,
)
from fedsim.attacks.privacy.matching.matching import Matching
from fedsim.attacks.privacy.matching.module_calls import outputs_size
from fedsim.attacks.privacy.matching.normalisation import enters_as_image
from fedsim.attacks.privacy.matching.objectives import NOISE, Cosine, Euclidean
from fedsim.attacks.privacy.matching.optimisers import Adam
from fedsim.attacks.privacy.matching.priors import (
    BatchNormStatistics,
    GroupConsistency,
    Length,
    Orthogonality,
    TotalVariation,
)
from fedsim.attacks.privacy.matching.starts import Normal
from fedsim.attacks.privacy.matching.target import compared
from fedsim.attacks.privacy.matching.watch import Watch
from fedsim.core.errors import FedsimError
from fedsim.core.randomness import generator
from fedsim.core.types import Observation, Task
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


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator(seed, "drawn"), dtype=torch.float64)


def test_penalties_are_their_formulas() -> None:
    images = drawn(2, 3, 1, 4, 5)
    at, model = images.clone().requires_grad_(), nn.Identity()
    assert Length(weight=0.5).on(model, TASK)(at)[0] == pytest.approx(0.5 * float(images.square().mean()))
    middle = (images[0] + images[1]) / 2
    spread = sum((images[place] - middle).square().sum() for place in (0, 1)) / images.numel()
    assert GroupConsistency(weight=0.5).on(model, TASK)(at)[0] == pytest.approx(0.5 * float(spread))
    cosines = [
        float(functional.cosine_similarity(images[c, i].flatten(), images[c, j].flatten(), dim=0)) ** 2
        for c in range(2)
        for i, j in itertools.permutations(range(3), 2)
    ]
    found = Orthogonality(weight=0.5).on(model, TASK)(at)[0]
    assert found == pytest.approx(0.5 * sum(cosines) / len(cosines))
    assert Orthogonality().on(model, TASK)(images[:, :1])[0] == 0  # nobody to be unlike
    assert TotalVariation().on(model, TASK)(images[..., :1, :1])[0] == 0  # no neighbours


def test_batch_statistics_are_compared_layer_by_layer() -> None:
    model = nn.Sequential(
        nn.BatchNorm2d(2), nn.BatchNorm2d(2), nn.BatchNorm2d(2, track_running_stats=False)
    ).double()
    first, second, _ = model
    first.running_mean, first.running_var = drawn(2, seed=1), drawn(2, seed=2).abs() + 0.5
    second.running_mean, second.running_var = drawn(2, seed=3), drawn(2, seed=4).abs() + 0.5
    model.eval()
    images = drawn(4, 2, 3, 3, seed=5)
    between = first(images)
    penalty = BatchNormStatistics(weight=0.7).on(model, TASK)
    model(images)
    gaps = 0.0
    for layer, entering in ((first, images), (second, between)):
        for channel in (0, 1):
            values = entering[:, channel].flatten()
            gaps += float((values.mean() - layer.running_mean[channel]) ** 2)
            gaps += float((values.var(correction=0) - layer.running_var[channel]) ** 2)
    assert penalty(images[None])[0] == pytest.approx(0.7 * gaps / 2)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("rate", [None, 0.2])
def test_the_objective_and_its_slopes_are_autograds(rate: float | None, together: bool) -> None:
    """Two candidates, a penalty, local steps: as one function of the pixels, differentiated as a whole."""
    told = {} if rate is None else {"kind": "update", "learning_rate": rate, "local_steps": 2}
    model, _, _, seen = seen_batch(4, **told)
    labels = torch.tensor([0, 1, 2, 1])
    candidates = 2 if together else 3
    _, problem = problem_of(model, seen, labels, candidates=candidates, priors=[Length(weight=0.5)])
    assert problem.together == (rate is None)
    problem = dataclasses.replace(problem, together=together and rate is None)
    point = drawn(4 * candidates, 1, 4, 4).requires_grad_()
    twin = model.double()

    def gradient(weights: dict[str, Tensor], pixels: Tensor, theirs: Tensor) -> list[Tensor]:
        loss = functional.cross_entropy(torch.func.functional_call(twin, weights, (pixels,)), theirs)
        return list(torch.autograd.grad(loss, list(weights.values()), create_graph=True))

    sent = {name: tensor.double().requires_grad_() for name, tensor in seen.sent.items()}
    total = 0.5 * point.square().mean()
    for part in point.split(4):
        pixels = part * 0.4 + 0.3
        if rate is None:
            reply = gradient(sent, pixels, labels)
        else:
            now = sent
            for half in (slice(0, 2), slice(2, 4)):
                slopes = gradient(now, pixels[half], labels[half])
                now = {name: t - rate * g for (name, t), g in zip(now.items(), slopes, strict=True)}
            reply = [now[name] - sent[name] for name in sent]
        gaps = [(a - seen.received[n].double()).square().sum() for a, n in zip(reply, sent, strict=True)]
        total = total + sum(gaps) / candidates
    value, slopes = problem.value_and_slopes([point.detach().clone()])
    assert value == pytest.approx(float(total.detach()), rel=1e-6)
    assert torch.allclose(slopes[0], torch.autograd.grad(total, point)[0], atol=1e-8)


def test_searched_labels_are_shares_and_have_slopes() -> None:
    model, _, _, seen = seen_batch()
    _, problem = problem_of(model, seen, None)
    point, logits = drawn(3, 1, 4, 4), drawn(1, 3, seed=1)
    assert torch.allclose(problem.labels_of([point, logits]), logits.softmax(1).expand(3, 3))
    value, slopes = problem.value_and_slopes([point, logits.clone()])
    for place in range(3):
        step = torch.zeros_like(logits)
        step[0, place] = 1e-5
        more, less = (problem.value_and_slopes([point, (logits + s).detach()])[0] for s in (step, -step))
        assert float(slopes[1][0, place]) == pytest.approx((more - less) / 2e-5, rel=1e-3, abs=1e-8)
    assert value > 0


def test_gauss_newton_minimises_the_layer_weighted_difference() -> None:
    model, _, labels, seen = seen_batch()
    _, problem = problem_of(model, seen, labels, objective=Euclidean(weighting="layer"))
    flat = 0.2 * drawn(48)
    function = residuals(problem, torch.float64, torch.Size((3, 1, 4, 4)))
    gap = function(flat)
    images = flat.view(3, 1, 4, 4) * 0.4 + 0.3
    own = fedsim.observe(model.double(), images, labels).received
    expected = [(own[n] - t.double()) / t.double().norm() for n, t in seen.received.items()]
    assert torch.allclose(gap, torch.cat([part.flatten() for part in expected]), atol=1e-7)
    value, _ = problem.value_and_slopes([flat.view(3, 1, 4, 4).clone()])
    assert float(gap.dot(gap)) == pytest.approx(value, rel=1e-5)
    jacobian = torch.func.jacrev(function)(flat)
    square, slope = jacobian.T @ jacobian, jacobian.T @ gap
    ridge = square.diagonal().mean() * torch.eye(48, dtype=torch.float64)
    nobody = Watch(math.inf, lambda done, note: None)
    for damping in (1.0, 0.1):
        step = torch.linalg.solve(square + damping * ridge, slope)
        dense = LevenbergMarquardt(chunk=7)._solver(function, torch.float64, flat, gap, nobody)
        assert torch.allclose(dense(damping), step, atol=1e-8)
    sparse = LevenbergMarquardt(dense=0)._solver(function, torch.float64, flat, gap, nobody)
    probe = torch.sign(torch.randn(48, generator=torch.Generator().manual_seed(0))).double()
    size = probe @ square @ probe / 48
    wanted = torch.linalg.solve(square + 0.5 * size * torch.eye(48, dtype=torch.float64), slope)
    assert torch.allclose(sparse(0.5), wanted, atol=1e-5)


def test_conjugate_gradients_end_when_they_are_there_or_at_the_limit() -> None:
    root = drawn(6, 6)
    matrix, right, calls = root @ root.T + torch.eye(6), drawn(6, seed=1), []

    def product(vector: Tensor) -> Tensor:
        calls.append(1)
        return matrix @ vector

    found = conjugate_gradients(product, right, 50)
    assert float((matrix @ found - right).norm()) < 1e-5 * float(right.norm())
    assert len(calls) <= 8
    assert not conjugate_gradients(product, torch.zeros(6, dtype=torch.float64), 50).any()
    one = conjugate_gradients(product, right, 1)
    assert torch.allclose(one, right * right.dot(right) / right.dot(matrix @ right))


def test_noise_has_no_weight_in_an_objective() -> None:
    target = [torch.tensor([2.0, 0.0]), torch.tensor([2.0 * NOISE * 1.1]), torch.tensor([2.0 * NOISE * 0.9])]
    scales = Euclidean(weighting="layer").scales(target)
    assert scales[0] == pytest.approx(0.5)
    assert scales[1] == pytest.approx(1 / float(target[1]), rel=1e-5)
    assert scales[2] == 0
    assert Euclidean().scales(target) == [1, 1, 1]
    value, _ = Cosine(weighting="layer").towards(target)([-tensor for tensor in target])
    assert value == pytest.approx(2)  # of the two that count, each is opposite
    alone, slopes = Cosine().towards([torch.zeros(2)])([torch.ones(2)])
    assert (alone, slopes[0].tolist()) == (1, [0, 0])


def test_normalisation_is_told_from_features() -> None:
    task = Task(input_shape=(2, 3, 3), num_classes=2, mean=(0.2, 0.5), std=(0.5, 0.25))
    probe = torch.rand(2, 2, 3, 3, generator=generator(3))
    mean, std = torch.tensor([0.2, 0.5]).view(1, 2, 1, 1), torch.tensor([0.5, 0.25]).view(1, 2, 1, 1)
    assert enters_as_image(probe, (probe - mean) / std, task)
    assert enters_as_image(probe, ((probe - mean) / std).flatten(1), task)
    assert not enters_as_image(probe, probe[:, :1], task)
    assert not enters_as_image(probe, probe.square(), task)
    assert not enters_as_image(probe, -probe, task)  # no normalisation turns pixels around
    for scale in (1.0, 100.0):  # rounding is relative to what comes out
        with pytest.raises(FedsimError, match=r"got mean=\(0.1, 0.3\), std="):
            enters_as_image(probe, (probe - torch.tensor([0.1, 0.3]).view(1, 2, 1, 1)) * scale, task)
    with pytest.raises(FedsimError, match=r"got mean=\(2.0,\), std=\(0.01,\)"):
        enters_as_image(probe, (probe - 2.0) / 0.01, task)  # all of it far below zero
    with pytest.raises(FedsimError, match=r"got mean=\(0.0,\), std=\(1.0,\)"):
        enters_as_image(probe, probe, task)
    point = Task(input_shape=(1, 1, 1), num_classes=2)
    pixel = torch.rand(2, 1, 1, 1, generator=generator(4))
    assert not enters_as_image(pixel, 3 * pixel + 1, point)  # a line goes through any two points


def test_outputs_are_counted_layer_by_layer() -> None:
    task = Task(input_shape=(1, 4, 4), num_classes=3)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))
    assert outputs_size(model, task) == 8 + 8 + 8 + 3


def test_what_is_compared_must_fit_the_floats() -> None:
    model, _, _, seen = seen_batch()
    target, used = compared(seen, model, ["output"])
    assert used == tuple(name.startswith("output") for name in seen.sent)
    assert [tuple(t.shape) for t in target] == [(3, 7), (3,)]
    for factor in (1e-25, 1e25):
        scaled = {name: factor * tensor for name, tensor in seen.received.items()}
        with pytest.raises(FedsimError, match=r"whose square torch\.float32 cannot hold"):
            compared(dataclasses.replace(seen, received=scaled), model, None)


def test_gauss_newton_goes_on_while_it_falls_slowly(monkeypatch) -> None:
    """Rosenbrock's valley: most steps fall by less than a factor of three."""

    def valley(problem: object, dtype: torch.dtype, form: object) -> object:
        return lambda flat: torch.stack([10 * (flat[1] - flat[0] ** 2), 1 - flat[0]])

    monkeypatch.setattr(levenberg_marquardt, "residuals", valley)
    problem = SimpleNamespace(labels=torch.zeros(1), candidates=1)
    watch = Watch(math.inf, lambda done, note: None)
    start = torch.tensor([[-1.2, 1.0]], dtype=torch.float64)
    LevenbergMarquardt(iterations=60).minimise(problem, [start], watch)
    assert watch.value < 1e-12
    assert watch.best[0].flatten().tolist() == pytest.approx([1, 1], abs=1e-5)
    assert watch.trace == sorted(watch.trace, reverse=True)
    assert len(watch.trace) < 60
    few = Watch(math.inf, lambda done, note: None)
    LevenbergMarquardt(iterations=3).minimise(problem, [start], few)
    assert len(few.trace) == 4
