"""What a verifier says of forgeries: valid domains, its own measuring, suspicions."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_kernels import SEEN_BY, Kernel, Simulated, rounding, size
from small_world import DATA, challenge, gap
from torch import nn

from fedsim.attacks.integrity.forging.box import Box
from fedsim.attacks.integrity.forging.error_matrix import ErrorMatrix
from fedsim.attacks.integrity.forging.greedy import Greedy
from fedsim.attacks.integrity.forging.lattice import Lattice
from fedsim.attacks.integrity.forging.nearest import Nearest
from fedsim.attacks.integrity.forging.one_level import OneLevel
from fedsim.attacks.integrity.forging.parallelogram import Parallelogram
from fedsim.attacks.integrity.forging.perturbation import Perturbation
from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Challenge, Forgery
from fedsim.core.randomness import generator
from fedsim.core.training import Batch, arithmetic, load_weights, sgd_step, weights_of
from fedsim.defenses.integrity.proof.domain import same_batch
from fedsim.defenses.integrity.proof.suspicion import suspicions
from fedsim.integrity.judge import RecordedStep, honest_error, judge_step
from fedsim.models.softmax import softmax

RATE = 0.01


def recorded(asked: Challenge, precision: str = "float32") -> RecordedStep:
    before = weights_of(asked.model)
    with arithmetic(precision):
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


@pytest.mark.parametrize("kernel", SEEN_BY, ids=lambda kernel: kernel.__name__)
def test_a_verifier_allows_ten_times_what_honest_machines_differ_by(kernel: Kernel) -> None:
    asked = challenge(Simulated(kernel), 8)
    step = recorded(asked)
    benign = honest_error(step)
    assert benign > 1e-4
    if kernel is size:
        assert benign == pytest.approx(RATE * (8 - 2))
    verdict = judge_step(step, asked.batch, "uint8", None)
    assert (verdict.benign, verdict.delta) == (benign, 10 * benign)


def test_honest_machines_differ_in_the_precision_of_the_game() -> None:
    asked = challenge(Simulated(rounding), 8)
    errors = {name: honest_error(recorded(asked, name)) for name in ("float32", "bfloat16", "float16")}
    for name, error in errors.items():
        coarser = torch.finfo(getattr(torch, name)).eps / torch.finfo(torch.float32).eps
        assert error == pytest.approx(coarser * errors["float32"])
    assert errors["float32"] > 0


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
