"""The parts of gradient matching: derivatives by hand, replies at the truth, labels, starts."""

import dataclasses
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedsim.attacks.privacy.labels.idlg import IDLG
from fedsim.attacks.privacy.labels.ilrg import ILRG
from fedsim.attacks.privacy.matching.labels import Given, Joint, Restored
from fedsim.attacks.privacy.matching.levenberg_marquardt import conjugate_gradients
from fedsim.attacks.privacy.matching.linear_layers import Between
from fedsim.attacks.privacy.matching.matching import Matching
from fedsim.attacks.privacy.matching.objectives import Cosine, Euclidean
from fedsim.attacks.privacy.matching.optimisers import Adam
from fedsim.attacks.privacy.matching.priors import (
    BatchNormStatistics,
    GroupConsistency,
    Length,
    Orthogonality,
    TotalVariation,
)
from fedsim.attacks.privacy.matching.starts import Normal, Patterned, Uniform
from fedsim.config import build
from fedsim.core.errors import FedsimError
from fedsim.core.training import batch_gradient
from fedsim.core.types import Observation, Task
from fedsim.flower.local_round import local_round
from fedsim.models.batch_norm import set_batch_norm
from fedsim.models.convnet import convnet
from fedsim.models.mlp import mlp

TASK = Task(input_shape=(1, 8, 8), num_classes=4, mean=(0.3,), std=(0.4,))


def attack(**parts: object) -> Matching:
    defaults: dict[str, object] = {
        "objective": Cosine(),
        "labels": Restored(attack=ILRG()),
        "start": Normal(),
        "optimiser": Adam(iterations=3),
    }
    return Matching(**(defaults | parts))


@settings(deadline=None, max_examples=40)
@given(
    st.integers(0, 10_000),
    st.sampled_from(["cosine", "angle", "cosine_layer", "euclidean", "euclidean_layer"]),
)
def test_derivatives_by_hand_equal_autograd(seed: int, kind: str) -> None:
    random = torch.Generator().manual_seed(seed)
    shapes = [(3, 4), (4,), (2, 2, 2)]
    target = [torch.randn(shape, generator=random, dtype=torch.float64) for shape in shapes]
    guess = [torch.randn(shape, generator=random, dtype=torch.float64).requires_grad_() for shape in shapes]
    weighting = "layer" if kind.endswith("layer") else "none"
    if kind.startswith("euclidean"):
        objective = Euclidean(weighting=weighting)
        factors = [1 / t.norm() ** 2 if weighting == "layer" else 1.0 for t in target]
        wanted = sum(f * (g - t).square().sum() for f, g, t in zip(factors, guess, target, strict=True))
    else:
        objective = Cosine(weighting=weighting, angle=kind == "angle")
        if weighting == "layer":
            pairs = [(g.flatten(), t.flatten()) for g, t in zip(guess, target, strict=True)]
        else:
            pairs = [(torch.cat([g.flatten() for g in guess]), torch.cat([t.flatten() for t in target]))]
        cosines = torch.stack([nn.functional.cosine_similarity(g, t, dim=0) for g, t in pairs])
        wanted = (cosines * (1 - 1e-7)).acos().mean() if kind == "angle" else (1 - cosines).mean()
    value, slopes = objective.towards(target)([tensor.detach() for tensor in guess])
    assert value == pytest.approx(float(wanted), rel=1e-6)
    for mine, theirs in zip(slopes, torch.autograd.grad(wanted, guess), strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-5, atol=1e-9)


def test_a_tensor_that_is_zero_does_not_spoil_an_objective() -> None:
    target, guess = [torch.zeros(3), torch.ones(2)], [torch.ones(3), torch.ones(2)]
    for objective in (Cosine(), Cosine(weighting="layer"), Euclidean(weighting="layer")):
        value, slopes = objective.towards(target)(guess)
        assert value == value
        assert all(bool(slope.isfinite().all()) for slope in slopes)


def test_total_variation_by_hand_equals_autograd() -> None:
    images = torch.randn(2, 3, 1, 5, 6, dtype=torch.float64, requires_grad=True)
    value, output, slope = TotalVariation(weight=0.5).on(nn.Identity(), TASK)(images)
    across = (images[..., 1:] - images[..., :-1]).abs().mean()
    down = (images[..., 1:, :] - images[..., :-1, :]).abs().mean()
    wanted = 0.5 * (across + down)
    assert value == pytest.approx(float(wanted))
    assert output is images
    assert torch.allclose(slope, torch.autograd.grad(wanted, images)[0])


def test_priors_prefer_what_they_are_for() -> None:
    random = torch.Generator().manual_seed(0)
    images = torch.randn(2, 3, 1, 6, 6, generator=random)
    assert Length().on(nn.Identity(), TASK)(0.1 * images)[0] < Length().on(nn.Identity(), TASK)(images)[0]
    agree = images[:1].expand(2, -1, -1, -1, -1)
    assert GroupConsistency().on(nn.Identity(), TASK)(agree)[0] == pytest.approx(0)
    assert GroupConsistency().on(nn.Identity(), TASK)(images)[0] > 0
    same = images[:, :1].expand(-1, 3, -1, -1, -1)
    assert (
        Orthogonality().on(nn.Identity(), TASK)(same)[0] > Orthogonality().on(nn.Identity(), TASK)(images)[0]
    )
    norm = nn.Sequential(nn.BatchNorm2d(1)).eval()
    penalty = BatchNormStatistics(weight=1.0).on(norm, TASK)
    norm(10 * images[0])
    far = penalty(images)[0]
    norm((images[0] - images[0].mean()) / images[0].std(unbiased=False))
    assert penalty(images)[0] < 1e-6 < far
    assert penalty(images)[0] == 0  # nothing seen since


def test_starts_have_the_form_of_images() -> None:
    task = Task(input_shape=(3, 7, 9), num_classes=2)
    for start in (Normal(), Uniform(), Patterned()):
        drawn = start.draw(5, task, torch.Generator().manual_seed(1))
        assert drawn.shape == (5, 3, 7, 9)
        assert torch.equal(drawn, start.draw(5, task, torch.Generator().manual_seed(1)))
    tiles = Patterned(tile=2).draw(1, task, torch.Generator())
    assert torch.equal(tiles[..., :, :2], tiles[..., :, 2:4])


def problem_at(images: Tensor, labels: Tensor, seen: Observation, model: nn.Module, **parts: object):
    """The problem of an observation, and the residual that the private batch has in it."""
    made = attack(labels=Given(labels=labels.tolist()), double=True, **parts)
    fixed = made.labels.fixed(model, TASK, [seen])
    problem = made._problem(model, TASK, seen, dataclasses.replace(fixed, labels=labels))
    normalised = (images.double() - TASK.mean[0]) / TASK.std[0]
    return problem, problem.residual(normalised, problem.labels)


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_the_private_batch_explains_the_gradient(mode: str, observe) -> None:
    model = convnet(Task(input_shape=(1, 9, 9), num_classes=4, mean=(0.3,), std=(0.4,)), width=4).eval()
    set_batch_norm(model, mode)
    images, labels = torch.rand(3, 1, 9, 9), torch.tensor([0, 2, 2])
    seen = dataclasses.replace(observe(model, images, labels), batch_norm=mode)
    assert problem_at(images, labels, seen, model)[1] < 1e-5
    assert problem_at(images.flip(2), labels, seen, model)[1] > 1e-3
    other = dataclasses.replace(seen, batch_norm="train" if mode == "eval" else "eval")
    assert problem_at(images, labels, other, model)[1] > 1e-3


def test_batch_norm_of_the_private_batch_leaves_running_statistics_alone() -> None:
    norm = nn.BatchNorm2d(2)
    set_batch_norm(norm, "train")
    norm(torch.randn(4, 2, 3, 3))
    assert torch.equal(norm.running_mean, torch.zeros(2))
    assert int(norm.num_batches_tracked) == 0
    set_batch_norm(norm, "eval")
    assert not norm.training


@pytest.mark.parametrize("steps", [1, 3])
def test_the_private_batches_explain_an_update(steps: int, small, tmp_path: Path) -> None:
    rules = ("federation=fedavg", f"federation.local_steps={steps}")
    experiment = small(*rules, "model=mlp", "model.width=9")
    setup = build.prepare_clients(experiment.config_text, tmp_path)()
    sent = {name: p.detach().clone() for name, p in setup.model.named_parameters()}
    done = local_round(setup, sent, 1, 0)
    truth, disclosed = done.truth, done.disclosed
    seen = Observation(
        round=1,
        client=0,
        sent=sent,
        received=done.claim.update,
        kind="update",
        learning_rate=disclosed["learning_rate"],
        local_steps=steps,
        num_examples=disclosed["num_examples"],
    )
    made = attack(labels=Given(labels=truth.labels.tolist()), double=True)
    fixed = dataclasses.replace(made.labels.fixed(setup.model, experiment.task, [seen]), labels=truth.labels)
    problem = made._problem(setup.model, experiment.task, seen, fixed)
    shift = problem.parametrisation
    assert problem.residual((truth.images.double() - shift.mean) / shift.std, truth.labels) < 1e-4


def seen_batch(observe, number: int = 6, **told: object) -> tuple[nn.Module, Observation, Tensor]:
    torch.manual_seed(0)
    model = mlp(TASK, width=40).eval()
    labels = torch.arange(number) % 4
    images = torch.rand(number, *TASK.input_shape, generator=torch.Generator().manual_seed(3))
    return model, observe(model, images, labels, **told), labels


def test_restored_counts_are_dealt_out_and_claimed(observe) -> None:
    model, seen, labels = seen_batch(observe)
    fixed = Restored(attack=ILRG()).fixed(model, TASK, [seen])
    assert sorted(fixed.labels.tolist()) == sorted(labels.tolist())
    guess = attack().run(model, TASK, [seen])
    assert guess.class_counts.tolist() == labels.bincount(minlength=4).tolist()


def test_presence_alone_is_dealt_out_in_turn(observe) -> None:
    model, seen, _ = seen_batch(observe)
    fixed = Restored(attack=IDLG()).fixed(model, TASK, [seen])
    present = IDLG().run(model, TASK, [seen]).class_presence.nonzero().flatten().tolist()
    assert len(present) > 1
    assert fixed.labels.tolist() == (present * 6)[:6]


def test_given_labels_are_never_claimed(observe) -> None:
    model, seen, labels = seen_batch(observe)
    told = dataclasses.replace(seen, class_counts=tuple(labels.bincount(minlength=4).tolist()))
    for made, what in ((Given(), told), (Given(labels=labels.tolist()), seen)):
        guess = attack(labels=made).run(model, TASK, [what])
        assert guess.images is not None
        assert guess.class_counts is None
        assert guess.class_presence is None
        assert guess.labels is None
    with pytest.raises(FedsimError, match=r"class_counts to federation\.disclose"):
        attack(labels=Given()).run(model, TASK, [seen])
    with pytest.raises(FedsimError, match="classes from 0 to 3"):
        attack(labels=Given(labels=[9] * 6)).run(model, TASK, [seen])


@pytest.mark.parametrize("shared", [False, True])
def test_searched_labels_are_claimed(shared: bool, observe) -> None:
    model, seen, _ = seen_batch(observe)
    guess = attack(labels=Joint(shared=shared)).run(model, TASK, [seen])
    assert int(guess.class_counts.sum()) == 6


def test_an_undisclosed_batch_size_comes_from_the_labels(observe) -> None:
    model, seen, _ = seen_batch(observe, num_examples=None)
    assert len(attack().run(model, TASK, [seen]).images) >= 1
    with pytest.raises(FedsimError, match=r"num_examples.*federation\.disclose"):
        attack(labels=Joint()).run(model, TASK, [seen])


def test_an_update_without_disclosed_steps_is_refused(observe) -> None:
    model, seen, _ = seen_batch(observe)
    update = dataclasses.replace(seen, kind="update", learning_rate=0.1, local_steps=None)
    with pytest.raises(FedsimError, match=r"local_steps.*federation\.disclose"):
        attack(labels=Given(labels=[0] * 6)).run(model, TASK, [update])


def test_compared_layers_are_chosen_by_name(observe) -> None:
    model, seen, labels = seen_batch(observe)
    problem, _ = problem_at(torch.rand(6, 1, 8, 8), labels, seen, model, layers=["output"])
    assert [tuple(tensor.shape) for tensor in problem.target] == [(4, 40), (4,)]
    with pytest.raises(FedsimError, match=r"attack\.layers.*hidden1\.weight"):
        attack(layers=["nothing"]).run(model, TASK, [seen])


def test_entries_that_a_client_left_out_do_not_count(observe) -> None:
    model, seen, labels = seen_batch(observe)
    images = torch.rand(6, *TASK.input_shape, generator=torch.Generator().manual_seed(3))
    thinned = {name: t * (t.abs() > t.abs().median()) for name, t in seen.received.items()}
    sparse = dataclasses.replace(seen, received=thinned)
    assert problem_at(images, labels, sparse, model)[1] > 0.01
    assert problem_at(images, labels, sparse, model, known_only=True)[1] < 1e-5


def test_conjugate_gradients_solve() -> None:
    random = torch.Generator().manual_seed(0)
    root = torch.randn(12, 12, generator=random, dtype=torch.float64)
    matrix, right = root @ root.T + torch.eye(12), torch.randn(12, generator=random, dtype=torch.float64)
    solution = conjugate_gradients(lambda v: matrix @ v, right, 100)
    assert torch.allclose(matrix @ solution, right, atol=1e-4)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"restarts": 0}, r"attack\.restarts"),
        ({"candidates": 1.5}, r"attack\.candidates"),
        ({"parametrisation": "fourier"}, "pixels, span, rows"),
        ({"seconds": 0}, r"attack\.seconds"),
    ],
)
def test_wrong_settings_are_refused(parts: dict[str, object], words: str) -> None:
    with pytest.raises(FedsimError, match=words):
        attack(**parts)


def test_wrong_settings_of_parts_are_refused() -> None:
    with pytest.raises(FedsimError, match=r"optimiser\.sign"):
        Adam(sign="softly")
    with pytest.raises(FedsimError, match=r"optimiser\.iterations"):
        Adam(iterations=0)
    with pytest.raises(FedsimError, match=r"objective\.weighting"):
        Cosine(weighting="deep")


def test_a_gradient_of_zeros_is_refused(observe) -> None:
    model, seen, _ = seen_batch(observe)
    nothing = dataclasses.replace(seen, received={k: torch.zeros_like(t) for k, t in seen.received.items()})
    with pytest.raises(FedsimError, match="zero everywhere"):
        attack(labels=Given(labels=[0] * 6)).run(model, TASK, [nothing])


def test_batch_gradient_matches_the_reply_of_the_problem(observe) -> None:
    model, seen, labels = seen_batch(observe)
    images = torch.rand(6, *TASK.input_shape, generator=torch.Generator().manual_seed(3))
    problem, residual = problem_at(images, labels, seen, model)
    assert residual < 1e-6
    gradient, _ = batch_gradient(model, images, labels)
    mine = problem.compared((images.double() - 0.3) / 0.4, labels)
    for left, right in zip(mine, gradient.values(), strict=True):
        assert torch.allclose(left.float(), right, atol=1e-6)


@pytest.mark.parametrize("module", [nn.ReLU(), nn.LeakyReLU(0.2), nn.LeakyReLU(0.01), nn.Tanh()])
def test_kinks_that_are_rounded_off_lie_above_the_kink_and_come_back_to_it(module: nn.Module) -> None:
    values, between = torch.linspace(-2, 2, 41, dtype=torch.float64), Between(modules=(module,))
    exact, narrow, wide = module(values), *(between(values, torch.tensor(w)) for w in (1e-3, 0.5))
    assert torch.equal(between(values), exact)
    assert torch.allclose(narrow, exact, atol=1e-3)
    assert bool((wide >= exact - 1e-12).all())
    assert between.kinked == bool((wide - exact).abs().max() > 0.1)
