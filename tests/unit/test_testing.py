"""The contracts that plug-ins are held to notice what breaks them."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Generator, Tensor, nn

from fedsim import Attack, Defense, Metric, Observation, Reconstruction, Score, Task, Truth
from fedsim.core.federation import Federation
from fedsim.core.interfaces import LocalStep
from fedsim.core.training import load_weights
from fedsim.core.types import Kind, KnownDefense, Weights
from fedsim.data.images import ArrayImages, Dataset
from fedsim.metrics.psnr import PSNR
from fedsim.testing import check_attack, check_data, check_defense, check_metric, check_yaml


class Guesser(Attack):
    """Answers with what it is given."""

    def __init__(self, make) -> None:
        self.make = make

    def run(self, model: nn.Module, task: Task, observations: Sequence[Observation]) -> Reconstruction:
        return self.make(observations[-1])


def blank(seen: Observation) -> Reconstruction:
    return Reconstruction(images=torch.zeros(6, 1, 8, 8))


def spoiling(seen: Observation) -> Reconstruction:
    next(iter(seen.received.values())).zero_()
    return Reconstruction()


def test_a_good_attack_passes() -> None:
    check_attack(Guesser(blank))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda seen: Reconstruction(images=torch.rand(6, 1, 8, 8)), "the same images"),
        (lambda seen: Reconstruction(residual=float(torch.rand(()))), "the same residual"),
        (lambda seen: Reconstruction(images=torch.zeros(6, 1, 4, 4)), r"images of shape \(1, 8, 8\)"),
        (lambda seen: Reconstruction(class_counts=torch.zeros(3, dtype=torch.int64)), "class_counts of 4"),
        (lambda seen: Reconstruction(class_counts=torch.full((4,), -1)), "at least 0"),
        (spoiling, "the observation to stay as it was"),
    ],
)
def test_an_attack_that_breaks_the_contract_is_told_which(make, words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        check_attack(Guesser(make))


def test_an_attack_that_crafts_in_secret_is_noticed() -> None:
    class Secret(Guesser):
        def craft(self, model: nn.Module, task: Task, round: int, weights: Weights) -> Weights:
            return dict(weights)

        def crafts(self) -> bool:
            return False

    with pytest.raises(AssertionError, match="crafts"):
        check_attack(Secret(blank))


class Changer(Defense):
    """Changes a reply as it is told."""

    def __init__(self, change) -> None:
        self.change = change

    def on_reply(self, reply: Weights, kind: Kind, generator: Generator) -> Weights:
        return {name: self.change(tensor) for name, tensor in reply.items()}


def test_a_good_defense_passes() -> None:
    check_defense(Changer(lambda tensor: tensor / 2))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda tensor: tensor + torch.rand(()), "the same reply"),
        (lambda tensor: tensor.zero_(), "stay as it was"),
        (lambda tensor: tensor[:1], "expected shape"),
        (lambda tensor: tensor / 0, "infinity|NaN"),
    ],
)
def test_a_defense_that_breaks_the_contract_is_told_which(change, words: str) -> None:
    with pytest.raises(Exception, match=words):
        check_defense(Changer(change))


def test_a_defense_is_held_to_it_in_a_whole_local_round() -> None:
    class Unsteady(Defense):
        calls = 0

        def on_gradient(self, gradient: Weights, step: LocalStep, generator: Generator) -> Weights:
            self.calls += len(step.images) == 5  # of a local round alone
            return {name: tensor + self.calls for name, tensor in gradient.items()}

        def rules(self, federation: Federation) -> Federation:
            return dataclasses.replace(federation, mode="fedavg", local_steps=2)

    with pytest.raises(AssertionError, match="local round"):
        check_defense(Unsteady())


class Idle(Defense):
    """Does nothing but claim."""

    def __init__(self, known: KnownDefense | None = None, **claims: object) -> None:
        self.told = known or KnownDefense()
        for name, value in claims.items():
            setattr(self, name, value)

    def known(self, observation: Observation) -> KnownDefense:
        return self.told


class Shaken(Idle):
    """Noise of a deviation of 0.1."""

    def on_reply(self, reply: Weights, kind: Kind, generator: Generator) -> Weights:
        return {name: t + 0.1 * torch.randn(t.shape, generator=generator) for name, t in reply.items()}


class Halved(Idle):
    """Sends the first half of each tensor."""

    def on_reply(self, reply: Weights, kind: Kind, generator: Generator) -> Weights:
        return {n: torch.cat([t[: len(t) // 2], 0 * t[len(t) // 2 :]]) for n, t in reply.items()}


class Wasteful(Defense):
    """Draws, and does not care."""

    def on_batch(self, images: Tensor, labels: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        torch.rand((), generator=generator)
        return images / 2, labels


class Meddler(Defense):
    """Trains the model that it is shown."""

    def on_gradient(self, gradient: Weights, step: LocalStep, generator: Generator) -> Weights:
        load_weights(step.model, gradient)
        return {name: tensor / 2 for name, tensor in gradient.items()}


@pytest.mark.parametrize(
    ("defense", "words"),
    [
        (Idle(), "a server sees something else"),
        (Idle(bits=3.0), "numbers of 3 bits"),
        (Shaken(sparse=True), "zeros in what is sent"),
        (Shaken(KnownDefense(zeros=True)), "zeros in what is sent"),
        (Halved(KnownDefense(zeros=True)), "sparse where zeros"),
        (Shaken(KnownDefense(noise=0.2)), "noise of the deviation it tells, 0.2"),
        (Wasteful(), "chance decides on the batch"),
        (Meddler(), "the model given to stay"),
    ],
)
def test_a_defense_that_does_not_do_what_it_says_is_told_so(defense: Defense, words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        check_defense(defense)
    check_defense(Shaken(KnownDefense(noise=0.1)))


class Fixed(Metric):
    """Scores as it is told."""

    def __init__(self, score: Score | None, always: bool = False) -> None:
        self.fixed, self.always = score, always

    def score(self, guess: Reconstruction, truth: Truth) -> Score | None:
        return self.fixed if self.always or guess.images is not None else None


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        (Fixed(None), "expected a score"),
        (Fixed(Score(metric="own", value=1.0)), "better than blind guesses, got 1.0 and 1.0"),
        (Fixed(Score(metric="other", value=1.0, baseline=0.0)), "named own, got other"),
        (Fixed(Score(metric="own", value=1.0, baseline=0.0), always=True), "None for a guess"),
    ],
)
def test_a_metric_that_breaks_the_contract_is_told_which(metric: Metric, words: str) -> None:
    check_metric(PSNR(), "psnr")
    with pytest.raises(AssertionError, match=words):
        check_metric(metric, "own")


def test_data_without_one_of_its_classes_are_noticed() -> None:
    images = ArrayImages(
        pixels=(torch.arange(320) % 256).to(torch.uint8).view(5, 1, 8, 8), labels=torch.zeros(5).long()
    )
    data = Dataset(task=Task(input_shape=(1, 8, 8), num_classes=2), train=images, test=images)
    with pytest.raises(AssertionError, match="labels of all 2 classes"):
        check_data(data)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("_target_: fedsim.metrics.psnr.PSNR\nbest: null\n", "begin with its package"),
        ("# @package metric.own\n_target_: fedsim.metrics.psnr.PSNR\n", r"to name \['best'\], got \[\]"),
        ("# @package metric.own\n_target_: fedsim.metrics.psnr.PSNR\nbest: 3\n", "best to be None, got 3"),
    ],
)
def test_a_yaml_that_disagrees_with_its_class_is_noticed(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "metric" / "own.yaml"
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(AssertionError, match=words):
        check_yaml(path)
    path.write_text("# @package metric.own\n_target_: fedsim.metrics.psnr.PSNR\nbest: 3\n")
    check_yaml(path, presets=["best"])
