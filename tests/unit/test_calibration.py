"""The studies of a calibration against slow truths."""

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from small_training import TRAINING, by_hand, fresh

from fedsim.attacks.integrity.spoofing.inverse_gradient import SOLVERS
from fedsim.core.randomness import generator
from fedsim.core.training import arithmetic, load_weights, sgd_step, weights_of
from fedsim.core.types import Weights
from fedsim.defenses.integrity.proof.calibration import shape_of
from fedsim.defenses.integrity.proof.distances import DISTANCES, distance
from fedsim.defenses.integrity.proof.expected import Thoroughness
from fedsim.defenses.integrity.proof.initialisation import DRAWS, smallest_p
from fedsim.defenses.integrity.proof.machine import machine
from fedsim.defenses.integrity.proof.reproduction import LEAST, SAFETY
from fedsim.defenses.integrity.proof.sampling import chosen_places
from fedsim.integrity import calibrate
from fedsim.integrity.calibrate import study
from fedsim.integrity.leaned_trace import leaned_back
from fedsim.integrity.recomputation import _starts, calibrations
from fedsim.integrity.training import (
    batch_at,
    central_indices,
    train_centrally,
    weights_before,
)
from fedsim.storage.findings import Finding


def found(name: str, **changed: object) -> dict[tuple[str, str], float]:
    findings = list(study(replace(TRAINING, study=(name,), **changed), "l2"))
    assert {finding.study for finding in findings} == {name}
    return {(finding.case, finding.figure): finding.value for finding in findings}


def equal(one: Weights, other: Weights) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_training_goes_through_the_data_in_epochs() -> None:
    assert TRAINING.epoch == 3
    seen = [central_indices(TRAINING, step).tolist() for step in range(6)]
    for epoch in (seen[:3], seen[3:]):
        assert sorted(index for step in epoch for index in step) == list(range(24))
    assert seen[:3] != seen[3:]
    assert central_indices(TRAINING, 0, 1).tolist() != seen[0]
    assert replace(TRAINING, batch_size=100).epoch == 1
    assert len(central_indices(replace(TRAINING, batch_size=100), 2)) == 24
    truth = by_hand()
    for every, kept in ((1, range(8)), (3, (0, 3, 6, 7)), (7, (0, 7))):
        trace = train_centrally(TRAINING, every)
        assert [equal(a, truth[b]) for a, b in zip(trace.checkpoints, kept, strict=True)] == [True] * len(
            kept
        )
        assert [list(step) for step in trace.indices[:6]] == seen
    before = weights_before(TRAINING, {2, 5})
    assert sorted(before) == [2, 5]
    assert all(equal(before[step], truth[step]) for step in before)


def test_concatenation_measures_the_jump_between_two_trainings() -> None:
    one, other = by_hand(), by_hand(number=1)
    largest = max(distance("l2", a, b) for a, b in pairwise(one))
    jump = distance("l2", one[-1], other[-1])
    assert found("concatenation") == {
        ("7 steps", "largest update"): pytest.approx(largest),
        ("7 steps", "jump"): pytest.approx(jump),
        ("7 steps", "jump / largest"): pytest.approx(jump / largest),
    }


@pytest.mark.parametrize(("interval", "formula"), [(1, 1 - (1 / 3) ** (7 / 3)), (2, 1.0)])
def test_what_a_verifier_sees_is_counted_and_computed(interval: int, formula: float) -> None:
    values = found("revealed", intervals=(interval,))
    trace = train_centrally(TRAINING, interval)
    places = chosen_places(trace, Thoroughness(top=1, random=1, epoch=3), generator(5, "revealed"))
    steps = [s for place in places for s in range(place * interval, min((place + 1) * interval, 7))]
    seen = {index for step in steps for index in trace.indices[step]}
    case = f"k={interval}, Q=1, R=1"
    assert values == {
        (case, "of the data"): len(seen) / 24,
        (case, "by the formula"): pytest.approx(formula),
    }


def test_reproduction_measures_every_variation_beside_unrelated_models() -> None:
    values = found("reproduction", intervals=(1, 2))
    one, other = by_hand(), by_hand(number=1)
    for name in DISTANCES:
        reference = distance(name, one[-1], other[-1])
        assert values["unrelated models", f"d_ref {name}"] == pytest.approx(reference)
        assert values["k=1, the same", name] == pytest.approx(0, abs=1e-12)
        for interval, starts in ((1, range(7)), (2, range(0, 7, 2))):
            errors = []
            for start in starts:
                model = fresh(0)
                load_weights(model, {n: t.half().float() for n, t in one[start].items()})
                for step in range(start, min(start + interval, 7)):
                    sgd_step(model, batch_at(TRAINING, central_indices(TRAINING, step)), 0.3)
                errors.append(distance(name, weights_of(model), one[min(start + interval, 7)]))
            case = f"k={interval}, float16 checkpoints"
            assert values[case, name] == pytest.approx(max(errors))
            assert values[case, f"{name} / d_ref"] == pytest.approx(max(errors) / reference)
    exact = ("the same", "2 threads", "permuted batch", "micro-batches", "other kernels")
    for interval in (1, 2):
        largest = max(values[f"k={interval}, {name}", "l2"] for name in exact)
        delta = values[f"k={interval}, delta for l2", "delta"]
        assert delta == pytest.approx(max(SAFETY * largest, LEAST))
        assert delta < values[f"k={interval}, float16 checkpoints", "l2"]


def test_single_steps_are_done_again_in_their_own_precision() -> None:
    values = found("precision", batch_size=24)
    assert values["bfloat16, the same", "largest l2"] == 0
    with arithmetic("bfloat16"):
        rough = train_centrally(TRAINING, 1).checkpoints[-1]
    assert not equal(rough, by_hand()[-1])
    sizes = found("batch_sizes", batch_sizes=(4, 8, 99))
    assert sizes["the model", "parameters"] == 51
    assert {case.split(",")[0] for case, _ in sizes} == {"the model", "b=4", "b=8", "b=24"}
    for case in ("b=4, permuted batch", "b=24, micro-batches"):
        assert 0 <= sizes[case, "mean l2"] <= sizes[case, "largest l2"]


def test_places_to_recompute_from_are_spread_over_the_training() -> None:
    assert _starts(7, 2) == [0, 2, 4, 6]
    assert _starts(19, 1) == list(range(19))
    assert _starts(40, 1) == list(range(0, 40, 2))
    assert _starts(100, 5) == list(range(0, 100, 5))


def test_initialisation_says_when_weights_are_told_from_fresh_ones(monkeypatch) -> None:
    known = [weights_of(fresh(1000 + number)) for number in range(1, 4)]

    def problem(weights: Weights, drawn: object) -> str | None:
        begun = [number for number, own in enumerate(known) if equal(own, weights)]
        if begun or any(equal(weights, weights_of(fresh(2000 + n))) for n in range(5, 20)):
            return None
        return "told"

    monkeypatch.setattr(calibrate, "initial_problem", problem)
    values = found("initialisation")
    assert [values[f"training {n}", "first step told"] for n in (1, 2, 3)] == [1, 1, 1]
    assert values["20 fresh models", "false alarms"] == 5 / 20
    monkeypatch.setattr(calibrate, "initial_problem", lambda weights, drawn: None)
    assert found("initialisation")["training 3", "first step told"] == 7
    assert equal(calibrate._fresh(TRAINING)(4), weights_of(fresh(5)))


def test_a_delta_is_bound_to_what_it_was_measured_for() -> None:
    training = replace(TRAINING, study=("reproduction",), intervals=(2, 3, 5))
    kept = [
        Finding(study="reproduction", case=f"k={interval}, delta for l2", figure="delta", value=interval / 10)
        for interval in (2, 3)
    ]
    first, second = calibrations(training, "l2", kept)
    assert (first.delta, first.every, first.intervals) == (0.2, 2, 4)
    assert (second.delta, second.every, second.intervals) == (0.3, 3, 3)
    assert (first.distance, first.learning_rate, first.batch_size) == ("l2", 0.3, 8)
    assert first.model == shape_of(weights_of(fresh(9)))
    assert machine() in first.machines
    assert calibrations(training, "linf", kept) == []
    (all_of_it,) = calibrations(replace(training, batch_size=99, intervals=(2,)), "l2", kept)
    assert all_of_it.batch_size == 24


def test_costs_are_the_share_beyond_training(monkeypatch) -> None:
    clock = iter([0.0, 2.0, 2.0, 5.0, 10.0, 14.0, 14.0, 24.0, 30.0, 33.0, 33.0, 39.0])
    monkeypatch.setattr(calibrate, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    assert found("costs") == {("k=3", "recording / training"): pytest.approx(3 / 2 - 1)}


def test_p_values_are_those_of_the_tensor_that_looks_least_like_a_fresh_one() -> None:
    drawn = [weights_of(fresh(number + 1)) for number in range(DRAWS)]
    way = [weights_of(fresh(1001)), *by_hand_from(1001)]
    values = found("p_values")
    assert [case for case, _ in values] == ["step 0", "step 1", "step 2", "step 5"]
    for step in (0, 1, 2, 5):
        assert values[f"step {step}", "smallest p"] == smallest_p(way[step], drawn)


def by_hand_from(seed: int) -> list[Weights]:
    """Return the weights after each step of the first data order, from another model."""
    model, after = fresh(seed), list[Weights]()
    for step in range(7):
        sgd_step(model, batch_at(TRAINING, central_indices(TRAINING, step, 1)), 0.3)
        after.append(weights_of(model))
    return after


def test_a_tensor_that_is_alike_in_all_draws_is_not_asked() -> None:
    drawn = [{"a": torch.zeros(9), "b": torch.arange(9.0) + number} for number in range(3)]
    assert smallest_p({"a": torch.ones(9), "b": torch.arange(9.0) + 1}, drawn) > 0.5
    assert smallest_p({"a": torch.ones(9), "b": torch.arange(9.0) + 50}, drawn) < 0.01


def test_inversion_tells_how_far_each_solver_gets_by_its_gradients() -> None:
    values = found("inversion", fresh=lambda number: fresh(number))
    for solver in SOLVERS:
        errors = [
            value for (case, figure), value in values.items() if case.startswith(solver) and figure == "linf"
        ]
        assert errors == sorted(errors, reverse=True)
        assert values[solver, "least linf"] <= errors[-1]
        assert values[f"{solver}, 1 gradients", "linf"] > 1e-6
    assert min(values[solver, "least linf"] for solver in SOLVERS) < 1e-9


def test_a_leaned_trace_is_nowhere_further_off_than_it_may_be_and_tells_what_is_left() -> None:
    other = batch_at(TRAINING, torch.arange(8, 16))
    plain, gap = leaned_back(TRAINING, {}, 0.01)
    assert gap == 0
    assert all(equal(one, own) for one, own in zip(plain.checkpoints, by_hand(), strict=True))
    trace, left = leaned_back(TRAINING, {2: other}, 1e-3)
    assert all(equal(one, own) for one, own in zip(trace.checkpoints[:3], by_hand(), strict=False))
    for step in range(2, 7):
        model = fresh(0)
        load_weights(model, trace.checkpoints[step])
        own = other if step == 2 else batch_at(TRAINING, central_indices(TRAINING, step))
        sgd_step(model, own, 0.3)
        assert distance("l2", weights_of(model), trace.checkpoints[step + 1]) == pytest.approx(1e-3, rel=1e-3)
    assert distance("l2", trace.checkpoints[-1], by_hand()[-1]) == pytest.approx(left, rel=1e-3)
    back, nothing = leaned_back(TRAINING, {2: other}, 10.0)
    assert nothing == 0
    assert equal(back.checkpoints[-1], by_hand()[-1])
