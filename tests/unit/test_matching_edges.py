"""Gradient matching where it is easy to get wrong: batches of one, equal images, noise, unusual models."""

import dataclasses

import pytest
import torch
from torch import nn

from fedsim.attacks.privacy.exact.peeling import Peel, Peeling
from fedsim.attacks.privacy.labels.ilrg import ILRG
from fedsim.attacks.privacy.matching.labels import Given, Joint, Restored
from fedsim.attacks.privacy.matching.levenberg_marquardt import LevenbergMarquardt
from fedsim.attacks.privacy.matching.matching import Matching
from fedsim.attacks.privacy.matching.objectives import Cosine, Euclidean
from fedsim.attacks.privacy.matching.optimisers import LBFGS, Adam
from fedsim.attacks.privacy.matching.priors import GroupConsistency, TotalVariation
from fedsim.attacks.privacy.matching.rgap import RGAP
from fedsim.attacks.privacy.matching.starts import Normal
from fedsim.config import build
from fedsim.config.compose import compose
from fedsim.core.errors import FedsimError
from fedsim.core.types import Interrupted, Task, Truth
from fedsim.metrics.psnr import PSNR
from fedsim.models.mlp import mlp
from fedsim.models.resnet import resnet

TASK = Task(input_shape=(1, 8, 8), num_classes=4, mean=(0.3,), std=(0.4,))


def random_images(number: int, seed: int = 3):
    return torch.rand(number, *TASK.input_shape, generator=torch.Generator().manual_seed(seed))


def model_of(width: int = 60, **settings: object) -> nn.Module:
    torch.manual_seed(0)
    return mlp(TASK, width=width, **settings).eval()


def span_attack() -> Matching:
    return build.experiment(compose(["attack=span_matching", "name=test"])).attack


def lowest(guess, images, labels) -> float:
    return min(PSNR().score(guess, Truth(round=1, client=0, images=images, labels=labels)).per_example)


@pytest.mark.parametrize("begin", [True, False])
def test_the_span_of_one_image_is_the_image(observe, begin: bool) -> None:
    model, images, labels = model_of(), random_images(1), torch.tensor([2])
    attack = span_attack()
    attack.first = attack.first if begin else None
    assert lowest(attack.run(model, TASK, [observe(model, images, labels)]), images, labels) > 100


def test_equal_images_are_found_once_and_counted_twice(observe) -> None:
    model, images = model_of(), random_images(6)
    images[4] = images[1]
    labels = torch.tensor([0, 1, 2, 3, 1, 2])
    for attack in (Peeling(), span_attack()):
        guess = attack.run(model, TASK, [observe(model, images, labels)])
        assert lowest(guess, images, labels) > 100
        assert guess.class_counts.tolist() == [1, 2, 2, 1]


def test_labels_come_from_what_found_the_images(observe) -> None:
    model, images, labels = model_of(), random_images(4), torch.tensor([0, 1, 2, 3])

    class Wrong(ILRG):
        def run(self, *seen):
            return dataclasses.replace(super().run(*seen), class_counts=torch.tensor([4, 0, 0, 0]))

    attack = span_attack()
    attack.labels = Restored(attack=Wrong())
    guess = attack.run(model, TASK, [observe(model, images, labels)])
    assert guess.class_counts.tolist() == [1, 1, 1, 1]
    attack.labels = Given(labels=[0, 1, 2, 3])
    assert attack.run(model, TASK, [observe(model, images, labels)]).class_counts is None


@pytest.mark.parametrize("rate", [0.5, None])
def test_an_update_of_one_step_is_peeled_like_a_gradient(observe, rate: float | None) -> None:
    model, images, labels = model_of(), random_images(5), torch.tensor([0, 1, 2, 3, 3])
    seen = observe(model, images, labels)
    update = {name: -0.5 * tensor for name, tensor in seen.received.items()}
    seen = dataclasses.replace(seen, kind="update", received=update, learning_rate=rate, local_steps=1)
    guess = Peeling().run(model, TASK, [seen])
    assert lowest(guess, images, labels) > 100
    assert guess.class_counts.tolist() == [1, 1, 1, 2]


def test_a_layer_too_narrow_for_the_batch_is_refused(observe) -> None:
    model, images, labels = model_of(width=12), random_images(9), torch.arange(9) % 4
    seen = observe(model, images, labels)
    with pytest.raises(FedsimError, match=r"12 units.*at least 18 for 9 examples.*Remedy"):
        Peeling().run(model, TASK, [seen])
    attack = span_attack()
    attack.optimiser = LBFGS(iterations=3)
    assert len(attack.run(model, TASK, [seen]).images) == 9  # the search begins at random


def test_a_model_that_is_no_chain_only_costs_the_good_start(observe) -> None:
    task = Task(input_shape=(3, 16, 16), num_classes=4)
    torch.manual_seed(0)
    model = resnet(task).eval()
    seen = observe(model, torch.rand(1, 3, 16, 16), torch.tensor([1]))
    with pytest.raises(FedsimError, match=r"rgap.*Remedy"):
        RGAP().run(model, task, [seen])
    attack = Matching(
        objective=Cosine(),
        labels=Restored(attack=ILRG()),
        start=Normal(),
        optimiser=Adam(iterations=1),
        first=RGAP(),
    )
    assert attack.run(model, task, [seen]).images.shape == (1, 3, 16, 16)


def test_recursion_refuses_a_batch_that_is_not_said_to_be_one(observe) -> None:
    model = model_of(activation="tanh")
    seen = observe(model, random_images(3), torch.tensor([0, 1, 2]), num_examples=None)
    with pytest.raises(FedsimError, match="more than one example"):
        RGAP().run(model, TASK, [seen])


@pytest.mark.parametrize("dense", [4096, 10])
def test_both_forms_of_gauss_newton_are_exact(observe, dense: int) -> None:
    model, images, labels = model_of(width=20, activation="tanh"), random_images(1), torch.tensor([3])
    attack = Matching(
        objective=Euclidean(weighting="layer"),
        labels=Restored(attack=ILRG()),
        start=Normal(deviation=0.1),
        optimiser=LevenbergMarquardt(dense=dense, products=400),
        double=True,
    )
    guess = attack.run(model, TASK, [observe(model, images, labels)])
    assert lowest(guess, images, labels) > 80


def test_gauss_newton_ends_when_nothing_is_left_to_fit(observe) -> None:
    model, images, labels = model_of(width=20, activation="tanh"), random_images(1), torch.tensor([3])
    seen = observe(model, images, labels)
    only = {name: torch.zeros_like(tensor) for name, tensor in seen.received.items()}
    only["output.bias"][3] = seen.received["output.bias"][3]
    attack = Matching(
        objective=Euclidean(weighting="layer"),
        labels=Given(labels=[3]),
        start=Normal(deviation=0.1),
        optimiser=LevenbergMarquardt(),
        known_only=True,
        double=True,
    )
    assert attack.run(model, TASK, [dataclasses.replace(seen, received=only)]).residual < 1e-3


def test_gauss_newton_refuses_what_it_would_ignore() -> None:
    parts = {"labels": Given(labels=[0]), "start": Normal(), "optimiser": LevenbergMarquardt()}
    with pytest.raises(FedsimError, match="layer-weighted"):
        Matching(objective=Cosine(), **parts)
    with pytest.raises(FedsimError, match=r"attack\.priors"):
        Matching(objective=Euclidean(weighting="layer"), priors=[TotalVariation()], **parts)


def test_tensors_of_pure_rounding_have_no_weight() -> None:
    target = [torch.ones(100), 1e-9 * torch.ones(5)]
    assert Euclidean(weighting="layer").scales(target)[1] == 0
    value, slopes = Cosine(weighting="layer").towards(target)([torch.ones(100), -torch.ones(5)])
    assert value == pytest.approx(0, abs=1e-6)
    assert float(slopes[1].abs().max()) == 0


def test_every_client_has_a_start_of_its_own(observe) -> None:
    model, labels = model_of(), torch.arange(4)
    seen = observe(model, random_images(4), labels)
    attack = Matching(
        objective=Cosine(), labels=Given(labels=[0, 1, 2, 3]), start=Normal(), optimiser=Adam(iterations=1)
    )
    first = attack.run(model, TASK, [seen]).images
    assert torch.equal(first, attack.run(model, TASK, [seen]).images)
    other = attack.run(model, TASK, [dataclasses.replace(seen, client=1)]).images
    assert not torch.equal(first, other)


def test_ctrl_c_keeps_the_images_that_were_peeled(observe, monkeypatch) -> None:
    model, images, labels = model_of(width=100), random_images(12), torch.arange(12) % 4
    search = Peel.search

    def once(self, starts, tolerance, random, **steps: int) -> int:
        if len(self):
            raise KeyboardInterrupt
        return search(self, 4, tolerance, random, **steps)

    monkeypatch.setattr(Peel, "search", once)
    with pytest.raises(Interrupted) as caught:
        Peeling().run(model, TASK, [observe(model, images, labels)])
    guess = caught.value.guess
    assert 0 < len(guess.images) < 12
    assert guess.class_counts is None
    assert len(guess.labels) == len(guess.images)


@pytest.mark.parametrize("layers", ["hidden1", ["nowhere"]])
def test_wrong_layers_are_refused(observe, layers: object) -> None:
    model = model_of()
    with pytest.raises(FedsimError, match=r"attack\.layers"):
        Matching(
            objective=Cosine(), labels=Given(labels=[0]), start=Normal(), optimiser=Adam(), layers=layers
        ).run(model, TASK, [observe(model, random_images(1), torch.tensor([0]))])


@pytest.mark.parametrize("labels", [Given(labels=[0, 1, 2]), Joint()])
def test_candidates_in_one_go_are_like_one_by_one(observe, labels: object) -> None:
    model = model_of(width=20)
    seen = observe(model, random_images(3), torch.tensor([0, 1, 2]))
    attack = Matching(
        objective=Cosine(),
        labels=labels,
        start=Normal(),
        optimiser=Adam(iterations=2),
        priors=[TotalVariation(), GroupConsistency()],
        candidates=4,
        double=True,
    )
    problem = attack._problem(model, TASK, seen, labels.fixed(model, TASK, [seen]))
    assert problem.together
    variables = attack._begin(problem, None, torch.Generator().manual_seed(0))
    value, slopes = problem.value_and_slopes(variables)
    apart, apart_slopes = dataclasses.replace(problem, together=False).value_and_slopes(variables)
    assert value == pytest.approx(apart, rel=1e-12)
    for mine, theirs in zip(slopes, apart_slopes, strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-9, atol=1e-12)
