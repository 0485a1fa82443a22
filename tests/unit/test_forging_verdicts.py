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
from fedsim.core.challenges import Challenge
from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Forgery
from fedsim.core.randomness import generator
from fedsim.core.training import Batch, load_weights, sgd_step, weights_of
from fedsim.defenses.integrity.proof.domain import same_batch
from fedsim.defenses.integrity.proof.suspicion import suspicions
from fedsim.integrity.judge import Demands, RecordedStep, honest_error, judge_step, last_places
from fedsim.integrity.nearness import nearness
from fedsim.integrity.trial import RATE, recorded
from fedsim.models.softmax import softmax

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
    verdict = judge_step(step, claimed, Demands(domain=domain))
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
        return judge_step(step, batch, Demands(domain=domain)).check

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
        judge_step(step, Batch(images=own.images[:3], labels=own.labels[:3]), Demands(domain="real")).domain
        == "none"
    )
    loose = judge_step(step, Greedy(candidates=2).forge(asked), Demands(delta=1e9))
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
    verdict = judge_step(step, asked.batch, Demands())
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


def claimed_near(step: RecordedStep, claimed: Batch, **demands: object):
    return judge_step(step, claimed, Demands(delta=1e9, **demands))


def test_a_rule_of_distance_refuses_near_copies_and_never_fails_open() -> None:
    torch.manual_seed(0)
    asked = challenge(softmax(DATA.task), 8)
    step, own = recorded(asked), asked.batch
    levels = torch.round(own.images * 255)
    moved = Batch(images=torch.where(levels < 128, levels + 10, levels - 10) / 255, labels=own.labels)
    verdict = claimed_near(step, moved)
    assert verdict.accepted
    assert verdict.near["l2"] == pytest.approx(10)
    assert 0 < verdict.near["ssim"] < 0.2
    assert claimed_near(step, moved, distance="l2", least=9.9).accepted
    for rule, least in (("l2", 10.1), ("ssim", 0.5), ("embedding", 1.0)):
        refused = claimed_near(step, moved, distance=rule, least=least)
        assert (refused.accepted, refused.check) == (False, "near")
        assert "near copy" in refused.reason
    other = examples_far_away(asked)
    assert claimed_near(step, other, distance="ssim", least=0.2).accepted
    unlike = nn.Sequential(nn.Flatten(), nn.Linear(49, 4), nn.ReLU()).double()  # ends in no linear layer
    assert nearness(unlike, weights_of(unlike), own, step.unwanted, own.images)["embedding"] is None
    blind = judge_step(
        replace(step, model=unlike, before=weights_of(unlike), after=weights_of(unlike)),
        moved,
        Demands(delta=1e9, distance="embedding"),
    )
    assert (blind.check, blind.reason) == ("near", "embedding does not apply to these images")


def examples_far_away(asked: Challenge) -> Batch:
    return asked.examples(asked.owned[:8])


def test_what_rounding_makes_of_the_same_weights_is_accepted_and_a_little_more_is_not() -> None:
    torch.manual_seed(0)
    asked = challenge(softmax(DATA.task), 8)
    step = recorded(asked)
    other = asked.examples(asked.owned[:8])
    sgd_step(asked.model, other, RATE)
    reached, floor = weights_of(asked.model), last_places(weights_of(asked.model))
    name = next(iter(reached))
    for off, passes in ((0.0, True), (0.9 * floor, True), (3 * floor, False)):
        after = {key: tensor.clone() for key, tensor in reached.items()}
        after[name].view(-1)[0] += off
        verdict = judge_step(replace(step, after=after, calibration=step.batch), other, Demands())
        assert verdict.once == passes
        assert verdict.delta >= floor > 1e-17
        assert not verdict.twin  # of the batch that was used


def test_twins_are_told_from_what_is_merely_within_delta() -> None:
    torch.manual_seed(0)
    asked = challenge(softmax(DATA.task), 8)
    planned = replace(asked, batch=Parallelogram(tries=5).compose(asked))
    step = recorded(planned)
    exchanged = Parallelogram().forge(planned)
    verdict = judge_step(step, exchanged, Demands())
    assert (verdict.accepted, verdict.twin) == (True, True)
    levels = torch.round(exchanged.images * 255)
    levels[0, 0, 0, 0] += 1 if levels[0, 0, 0, 0] < 255 else -1
    merely = judge_step(step, Batch(images=levels / 255, labels=exchanged.labels), Demands(delta=1.0))
    assert (merely.accepted, merely.twin) == (True, False)


def test_acceptance_at_once_twice_and_ten_times_the_honest_error() -> None:
    asked = challenge(Simulated(size), 8)
    step = recorded(asked)
    benign, other = honest_error(step), asked.examples(asked.owned[:8])
    load_weights(asked.model, step.before)
    sgd_step(asked.model, other, RATE)
    reached = weights_of(asked.model)
    name = next(iter(reached))
    found = list[tuple[bool, bool, bool]]()
    for times in (0.9, 1.9, 9.0, 11.0):
        after = {key: tensor.clone() for key, tensor in reached.items()}
        after[name].view(-1)[0] += times * benign
        # Honest errors are those of a batch of the verifier's own: nobody showed him the one that was used.
        verdict = judge_step(replace(step, after=after, calibration=step.batch), other, Demands())
        found.append((verdict.once, verdict.twice, verdict.accepted))
    assert found == [(True, True, True), (False, True, True), (False, False, True), (False, False, False)]


def test_steps_that_follow_are_done_again_before_weights_are_compared() -> None:
    torch.manual_seed(0)
    asked = challenge(softmax(DATA.task), 8)
    later = tuple(asked.examples(asked.owned[8 * n : 8 * n + 8]) for n in (1, 2))
    before = weights_of(asked.model)
    for batch in (asked.batch, *later):
        sgd_step(asked.model, batch, RATE)
    step = replace(recorded(replace(asked, batch=asked.batch)), before=before, following=later)
    model = softmax(DATA.task).double()
    load_weights(model, before)
    for batch in (asked.batch, *later):
        sgd_step(model, batch, RATE)
    step = replace(step, after=weights_of(model))
    assert honest_error(step) < 1e-14
    order = torch.arange(7, -1, -1)
    again = Batch(images=asked.batch.images[order], labels=asked.batch.labels[order])
    assert judge_step(step, again, Demands()).error < 1e-14
    assert judge_step(replace(step, following=later[:1]), again, Demands()).error > 1e-6
