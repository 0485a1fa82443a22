"""What each malicious client does, to the letter: lengths of moves, which steps are honest, what is shown."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsim.attacks.integrity.forging.forger import Forger
from fedsim.attacks.integrity.forging.greedy import Greedy
from fedsim.attacks.integrity.spoofing.adversarial_data import AdversarialData
from fedsim.attacks.integrity.spoofing.blindfold import Blindfold
from fedsim.attacks.integrity.spoofing.concatenation import Concatenation
from fedsim.attacks.integrity.spoofing.directed_retraining import DirectedRetraining
from fedsim.attacks.integrity.spoofing.fabricate import claimed, moved, shifted
from fedsim.attacks.integrity.spoofing.free_rider import FreeRider
from fedsim.attacks.integrity.spoofing.hidden_jump import SCALES, HiddenJump
from fedsim.attacks.integrity.spoofing.idle import Idle, sure_batch
from fedsim.attacks.integrity.spoofing.infinitesimal import Infinitesimal
from fedsim.attacks.integrity.spoofing.inverse_gradient import SOLVERS, InverseGradient, invert_step
from fedsim.attacks.integrity.spoofing.planned_data import PlannedData
from fedsim.attacks.integrity.spoofing.replay import Replay
from fedsim.attacks.integrity.spoofing.wrong_data import WrongData
from fedsim.contracts import STEPS, same_weights, small_model, small_work
from fedsim.core.interfaces import Behaviour
from fedsim.core.training import Claim, LocalWork, honest, load_weights, sgd_step, weights_of
from fedsim.defenses.integrity.proof.verify import recompute

Weights = Mapping[str, Tensor]


def between(one: Weights, other: Weights) -> dict[str, Tensor]:
    return {name: other[name] - one[name] for name in one}


def lengths(weights: Weights) -> list[float]:
    return [float(tensor.norm()) for tensor in weights.values()]


def gaps(claim: Claim, model: nn.Module | None = None) -> list[float]:
    """How far each claimed checkpoint is from where its step leads."""
    model = small_work().model if model is None else model
    return [recompute(claim.trace, step, model, [claim.batches[step]], "l2") for step in range(STEPS)]


def smooth_work() -> LocalWork:
    """Work on a model without kinks, whose steps can be undone."""
    model = small_model(activation="tanh")
    return replace(small_work(), model=model, sent=weights_of(model))


def test_weights_are_moved_by_shares_and_lengths() -> None:
    work = small_work()
    there = {name: tensor + 2 for name, tensor in work.sent.items()}
    halfway = moved(work.sent, there, 0.25)
    assert all(torch.allclose(halfway[name], tensor + 0.5) for name, tensor in work.sent.items())
    far = between(work.sent, shifted(work, there, 0.3))
    assert lengths(far) == pytest.approx([0.3 * length for length in lengths(there)], rel=1e-4)


@pytest.mark.parametrize(("every", "shown"), [(1, [0, 1, 2, 3, 4]), (3, [0, 3, 4]), (4, [0, 4]), (9, [0, 4])])
def test_claims_show_a_checkpoint_every_so_many_steps_and_the_last(every: int, shown: list[int]) -> None:
    work = small_work(every=every)
    way = [{name: tensor + step for name, tensor in work.sent.items()} for step in range(STEPS + 1)]
    claim = claimed(work, way, work.own_batches())
    assert [w["output.bias"][0] for w in claim.trace.checkpoints] == [way[s]["output.bias"][0] for s in shown]
    assert all(torch.allclose(tensor, torch.full_like(tensor, 4.0)) for tensor in claim.update.values())


def test_a_free_rider_sends_noise_over_a_straight_line() -> None:
    claim = FreeRider(noise=0.05).train(small_work())
    values = torch.cat([tensor.flatten() for tensor in claim.update.values()])
    assert float(values.std()) == pytest.approx(0.05, rel=0.05)
    for step, checkpoint in enumerate(claim.trace.checkpoints):
        line = moved(small_work().sent, claim.trace.checkpoints[-1], step / STEPS)
        assert all(torch.allclose(checkpoint[name], line[name], atol=1e-6) for name in line)
    assert not any(tensor.any() for tensor in FreeRider(noise=0).train(small_work()).update.values())


def test_a_claimed_gradient_is_the_one_that_would_have_led_there() -> None:
    work = replace(small_work(), kind="gradient", steps=1)
    there = {name: tensor + 0.5 for name, tensor in work.sent.items()}
    claim = claimed(work, [work.sent, there], work.own_batches())
    for found in (claim.update, claim.trace.checkpoints[-1]):
        assert all(torch.allclose(t, torch.full_like(t, -0.5 / work.learning_rate)) for t in found.values())
    assert same_weights(claim.trace.checkpoints[0], work.sent)
    plain = claimed(replace(work, every=None), [work.sent, there], work.own_batches())
    assert plain.trace is None
    assert same_weights(plain.update, claim.update)


def test_cheats_commit_to_the_data_that_they_will_show() -> None:
    work = small_work()
    own = work.own_batches()[0]
    assert WrongData(shows="own").data(own, work.task) is own
    flipped = WrongData(shows="used").data(own, work.task)
    assert torch.equal(flipped.labels, (own.labels + 1) % 4)
    assert torch.equal(flipped.images, own.images)
    blank = PlannedData().data(own, work.task)
    assert blank.images.shape == own.images.shape
    assert not blank.labels.any()
    bits = (255 * blank.images.flatten(1)).round().long()
    assert (bits[:, :4] * torch.tensor([1, 2, 4, 8])).sum(1).tolist() == list(range(len(own.labels)))


@pytest.mark.parametrize("first", [1, 2])
def test_a_blindfold_takes_its_first_steps_honestly_and_the_others_in_small(first: int) -> None:
    claim = Blindfold(honest_steps=first, size=0.3).train(small_work())
    assert gaps(claim)[:first] == [0.0] * first
    assert min(gaps(claim)[first:]) > 1e-3
    way = claim.trace.checkpoints
    real = lengths(between(way[first - 1], way[first]))
    for step in range(first, STEPS):
        assert lengths(between(way[step], way[step + 1])) == pytest.approx([0.3 * x for x in real], rel=1e-3)


@pytest.mark.parametrize("cheat", [Blindfold(), Concatenation(), DirectedRetraining(), WrongData()])
def test_a_cheat_begins_with_the_weights_sent_whatever_its_model_held(cheat: Behaviour) -> None:
    fresh, used = small_work(), small_work()
    with torch.no_grad():
        for parameter in used.model.parameters():
            parameter.add_(1.0)  # of another round
    assert same_weights(cheat.train(fresh).update, cheat.train(used).update)


def test_a_concatenation_is_false_in_the_middle_step_alone() -> None:
    claim = Concatenation(jump=3.0).train(small_work())
    found, way = gaps(claim), claim.trace.checkpoints
    assert [gap > 1e-2 for gap in found] == [False, False, True, False]
    assert max(found[:2] + found[3:]) == 0
    update = lengths(between(way[0], way[2]))
    assert lengths(between(way[0], way[3])) == pytest.approx([3 * length for length in update], rel=1e-3)
    single = lengths(between(way[0], Concatenation().train(small_work()).trace.checkpoints[1]))
    assert single == lengths(between(way[0], way[1]))


def test_directed_retraining_goes_a_share_of_the_way_after_each_step() -> None:
    still = DirectedRetraining(pull=0.0).train(small_work())
    assert max(gaps(still)) < 1e-6
    sent = small_work().sent
    arrived = DirectedRetraining(pull=1.0, away=0.3).train(small_work()).update
    assert lengths(arrived) == pytest.approx([0.3 * length for length in lengths(sent)], rel=1e-3)
    first = DirectedRetraining(pull=0.25, away=0.3).train(small_work()).trace.checkpoints[1]
    plain, target = honest(small_work()).trace.checkpoints[1], {n: sent[n] + arrived[n] for n in sent}
    assert all(torch.allclose(first[n], 0.75 * plain[n] + 0.25 * target[n], atol=1e-6) for n in sent)


def test_infinitesimal_steps_are_valid_and_lead_nowhere() -> None:
    claim = Infinitesimal(learning_rate=1e-9).train(small_work())
    assert claim.trace.learning_rate == 1e-9
    assert max(gaps(claim)) < 1e-6
    assert max(lengths(claim.update)) < 1e-5 < max(lengths(honest(small_work()).update))


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_step_is_solved_for_its_start(solver: str) -> None:
    work = smooth_work()
    batch, rate = work.own_batches()[0], work.learning_rate
    slow = solver == "gradient_descent"  # it converges linearly
    found = invert_step(work.model, work.sent, batch, rate, solver=solver, iterations=60 if slow else 15)
    assert found.error < 1e-6
    assert found.calls > 1
    assert min(lengths(between(found.weights, work.sent))) > 1e-4
    assert invert_step(work.model, work.sent, batch, rate, iterations=1).calls == 1


def test_an_inverse_gradient_is_valid_in_every_step_and_begins_elsewhere() -> None:
    claim = InverseGradient(away=0.3).train(smooth_work())
    assert max(gaps(claim, smooth_work().model)) < 1e-5
    sent = smooth_work().sent
    assert lengths(claim.update) == pytest.approx([0.3 * length for length in lengths(sent)], rel=1e-3)
    assert not same_weights(claim.trace.checkpoints[0], sent)


def test_an_old_proof_is_sent_again() -> None:
    assert Replay().send(b"new", b"old") == b"old"
    assert Replay().send(b"new", b"") == b"new"
    update = Replay(noise=0.02).train(small_work()).update
    assert same_weights(update, FreeRider(noise=0.02).train(small_work()).update)


def test_wrong_data_is_the_next_class_shown_or_not() -> None:
    own = small_work().own_batches()
    hidden, open_ = (WrongData(shows=shows).train(small_work()) for shows in ("own", "used"))
    for plain, one, other in zip(own, hidden.batches, open_.batches, strict=True):
        assert torch.equal(one.labels, plain.labels)
        assert torch.equal(other.labels, (plain.labels + 1) % 4)
    assert same_weights(hidden.update, open_.update)
    assert min(gaps(hidden)) > 1e-3
    assert max(gaps(open_)) == 0
    twice = WrongData(strength=2.0).train(small_work()).trace.checkpoints
    once = hidden.trace.checkpoints
    steps = [lengths(between(way[0], way[1])) for way in (once, twice)]
    assert steps[1] == pytest.approx([2 * length for length in steps[0]], rel=1e-3)


def test_an_idle_client_shows_copies_of_the_image_that_the_model_is_surest_of() -> None:
    work = small_work()
    claim, found = Idle(iterations=10).train(work), sure_batch(work, 10)
    assert all(same_weights(weights, work.sent) for weights in claim.trace.checkpoints)
    assert not any(tensor.any() for tensor in claim.update.values())
    own = work.own_batches()[0]
    with torch.no_grad():
        scores = work.model(own.images)
        least = functional.cross_entropy(scores, scores.argmax(1), reduction="none").min()
        loss = functional.cross_entropy(work.model(found.images), found.labels)
    assert float(loss) < 0.5 * float(least)
    for batch in claim.batches:
        assert torch.equal(batch.images, found.images[:1].expand_as(own.images))
        assert torch.equal(batch.labels, found.labels[:1].expand_as(own.labels))
    assert torch.allclose(255 * found.images, (255 * found.images).round(), atol=1e-4)


def length(one: Weights, other: Weights) -> float:
    return float(torch.cat([tensor.flatten() for tensor in between(one, other).values()]).norm())


def test_a_hidden_jump_goes_by_the_true_step_that_is_longest_beside_its_jumps() -> None:
    claim = HiddenJump(strength=2.0).train(small_work())
    found, way = gaps(claim), claim.trace.checkpoints
    assert [gap > 1e-2 for gap in found] == [False, True, False, True]
    assert (found[0], found[2]) == (0, 0)
    work, ratios = small_work(), []
    for scale, base in product(SCALES, (way[1], way[4])):
        away = {name: scale * tensor for name, tensor in base.items()}
        load_weights(work.model, away)
        sgd_step(work.model, work.own_batches()[2], work.learning_rate)
        there = weights_of(work.model)
        ratios.append(length(away, there) / max(length(way[1], away), length(there, way[4])))
    jumps = max(length(way[1], way[2]), length(way[3], way[4]))
    assert length(way[2], way[3]) / jumps == pytest.approx(max(ratios), rel=1e-4)


def test_adversarial_data_are_grey_levels_that_lead_nearer_to_the_step_than_ones_own() -> None:
    claim, own = AdversarialData(iterations=2).train(smooth_work()), smooth_work().own_batches()
    line = [moved(smooth_work().sent, claim.trace.checkpoints[-1], step / STEPS) for step in range(STEPS + 1)]
    for point, wanted in zip(claim.trace.checkpoints, line, strict=True):
        assert all(torch.allclose(point[name], wanted[name], atol=1e-6) for name in wanted)
    fitted, plain = (gaps(one, smooth_work().model) for one in (claim, replace(claim, batches=own)))
    assert all(gap < honest_gap for gap, honest_gap in zip(fitted, plain, strict=True))
    for made, batch in zip(claim.batches, own, strict=True):
        assert torch.equal(made.labels, batch.labels)
        assert torch.allclose(255 * made.images, (255 * made.images).round(), atol=1e-4)


@pytest.mark.parametrize(("fraction", "gone"), [(0.0, 1), (0.5, 3), (1.0, 6)])
def test_a_forger_trains_honestly_and_claims_other_examples(fraction: float, gone: int) -> None:
    claim = Forger(forgery=Greedy(candidates=1), fraction=fraction).train(small_work())
    plain = Behaviour().train(small_work())
    assert same_weights(claim.update, plain.update)
    for one, other in zip(claim.batches, plain.batches, strict=True):
        changed = (one.images != other.images).flatten(1).any(dim=1)
        assert int(changed.sum()) == gone
