"""Whole traces without an example, of a training of moments: what passes, what does not, by which delta."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from small_training import TRAINING as LONGER
from small_training import fresh
from torch import nn

from fedsim.core.errors import FedsimError
from fedsim.core.training import tensors_digest
from fedsim.core.types import Weights
from fedsim.data.synthetic import synthetic
from fedsim.defenses.integrity.proof.reproduction import SAFETY, stand_ins
from fedsim.integrity import forged_trace
from fedsim.integrity.forged_trace import batches_file, judge_traces, proof_file, trace_delta, write_trace
from fedsim.integrity.judge import last_places
from fedsim.integrity.training import batch_at, central_indices, train_centrally
from fedsim.storage.folder import Storage

DATA = synthetic(shape=(1, 4, 4), num_classes=3, train_size=24, test_size=10)
TRAINING = replace(LONGER, test=DATA.test, steps=2, intervals=(1,), batch_sizes=(8,))
USED = [central_indices(TRAINING, step).tolist() for step in range(2)]
UNUSED = next(place for place in range(24) if place not in USED[0] + USED[1])


def verdicts(storage: Storage, **more: object) -> list[forged_trace.TraceVerdict]:
    return list(judge_traces(storage, TRAINING, **more))


def problems(storage: Storage, **more: object) -> set[str]:
    return {verdict.problem for verdict in verdicts(storage, **more)}


def test_a_training_that_never_used_an_example_passes_on_every_machine(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    write_trace(storage, "honest", TRAINING, {}, [UNUSED])
    found = verdicts(storage)
    assert [verdict.machine for verdict in found] == [way.name for way in stand_ins(1)]
    last = train_centrally(TRAINING, 1).checkpoints[-1]
    for verdict in found:
        assert (verdict.forgery, verdict.steps, verdict.problem) == ("honest", 2, "")
        assert verdict.largest <= verdict.delta
        assert verdict.model == tensors_digest(last)
        assert str(verdict).endswith(f"model {verdict.model[:12]}: passes as one that never used them")
    assert problems(storage, every=2) == {"expected weights every 2 steps (forge.every), got 1"}


@pytest.mark.parametrize("step", [0, 1])
def test_an_example_that_was_used_is_found_in_its_step(step: int, tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    write_trace(storage, "used", TRAINING, {}, [UNUSED, USED[step][3]])
    assert problems(storage) == {f"step {step}: an unwanted example is there"}
    assert all(verdict.steps == 0 for verdict in verdicts(storage))


def test_another_batch_ends_elsewhere(tmp_path: Path) -> None:
    storage, own = Storage(tmp_path), batch_at(TRAINING, torch.tensor(USED[1]))
    write_trace(storage, "other", TRAINING, {1: replace(own, images=own.images.flip(3))}, USED[1][:1])
    verdict = next(judge_traces(storage, TRAINING))
    assert verdict.problem == f"an interval ends {verdict.largest:.3g} from what was recorded"
    assert verdict.largest > 100 * verdict.delta
    assert str(verdict).endswith(f"rejected: {verdict.problem}")


def test_what_lies_beside_the_proof_must_be_what_it_was_made_for(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    write_trace(storage, "a", TRAINING, {}, [UNUSED])
    tensors, _ = storage.read_tensors(batches_file("a"))

    def with_tensors(**changed: torch.Tensor) -> set[str]:
        storage.write_tensors(batches_file("a"), {**tensors, **changed})
        return problems(storage)

    levels, labels = tensors["levels"], tensors["labels"]
    other = levels.clone()
    other[1, 0] = 255 - other[1, 0]
    assert with_tensors(levels=other) == {"step 1: the batch shown is not the one in the proof"}
    assert with_tensors(levels=levels[:1], labels=labels[:1]) == {"2 steps, 1 batches"}
    storage.write_tensors(batches_file("a"), {"levels": levels, "labels": labels, "unwanted": levels[0]})
    assert problems(storage) == {"a: expected the tensors unwanted_labels beside the batches"}
    storage.delete([batches_file("a")])
    assert problems(storage) == {"a: expected a proof and its batches in traces/, got one of the two"}
    storage.delete([proof_file("a")])
    with pytest.raises(FedsimError, match="no forged trace is here"):
        verdicts(storage)


def test_a_proof_of_another_training_is_refused(tmp_path: Path) -> None:
    for change in ({"learning_rate": 0.2}, {"steps": 1}):
        storage = Storage(tmp_path / next(iter(change)))
        write_trace(storage, "a", replace(TRAINING, **change), {}, [UNUSED])
        assert problems(storage) == {"expected the steps and the learning rate of config.yaml"}
    storage = Storage(tmp_path / "trained")
    far = replace(TRAINING, fresh=lambda number: scaled(fresh(number)))
    write_trace(storage, "a", far, {}, [UNUSED])
    assert all("not a random initialisation" in problem for problem in problems(storage))


def scaled(model: nn.Module) -> nn.Module:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5)
    return model


def test_delta_is_ten_times_the_middle_of_what_ways_are_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = train_centrally(TRAINING, 1)
    ends = {0: [0.0, 0.0, 1.0, 3.0], 1: [5.0, 5.0, 5.0, 5.0]}  # nearest others: 1, 1, 1 and 2; none

    def end(trace: object, batches: object, training: object, place: int, way: SimpleNamespace) -> Weights:
        return {"w": torch.tensor([ends[place][way.number]])}

    ways = [SimpleNamespace(exact=True, number=number) for number in (0, 1)]
    inexact = SimpleNamespace(exact=False, number=3)
    monkeypatch.setattr(forged_trace, "_end", end)
    monkeypatch.setattr(forged_trace, "variations", lambda threads: [*ways, inexact])
    monkeypatch.setattr(forged_trace, "rounded", lambda number: SimpleNamespace(number=number + 2))
    assert trace_delta(trace, TRAINING) == SAFETY * 1.0
    ends[1] = [0.0, 4.0, 4.5, 9.0]  # 4, .5, .5, 4.5: of two in the middle, the lower
    assert trace_delta(trace, TRAINING) == SAFETY * 1.0
    ends[1] = [0.0, 4.0, 8.0, 13.0]
    assert trace_delta(trace, TRAINING) == SAFETY * 4.0
    ends[0] = ends[1] = [1.0, 1.0, 1.0, 1.0]
    assert trace_delta(trace, TRAINING) == last_places(trace.checkpoints[-1])


def test_test_images_stand_in_for_batches_others_for_each_step() -> None:
    for step, wanted in ((0, [0, 1, 2, 3]), (1, [4, 5, 6, 7]), (2, [8, 9, 0, 1])):
        batch = forged_trace._reference(TRAINING, step, 4)
        assert torch.equal(batch.images, DATA.test.batch(torch.tensor(wanted)))
        assert torch.equal(batch.labels, DATA.test.labels[torch.tensor(wanted)])


def test_of_an_interval_the_nearest_end_counts_and_the_first_that_is_near_enough_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trace = SimpleNamespace(checkpoints=({"w": torch.tensor([9.0])}, {"w": torch.tensor([0.0])}))
    tried = list[float]()

    def end(trace: object, batches: object, training: object, place: int, way: object) -> Weights:
        tried.append([3.0, 2.0, 4.0, 1.0, 0.5][min(len(tried), 4)])
        return {"w": torch.tensor([tried[-1]])}

    monkeypatch.setattr(forged_trace, "_end", end)
    first, nearest, error = forged_trace._nearest_end(trace, [], TRAINING, 0, 1.0, range(7))
    assert (float(first["w"]), float(nearest["w"]), error, len(tried)) == (3.0, 1.0, 1.0, 4)
    tried.clear()
    assert forged_trace._nearest_end(trace, [], TRAINING, 0, 0.1, range(7))[2] == 0.5
    assert len(tried) == 7
