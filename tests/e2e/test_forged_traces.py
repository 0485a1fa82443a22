"""Whole traces without an example: written by a game, judged from the folder by another process."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_settings import DATA

from fedsim.commands.forge import check_traces
from fedsim.config import build_central
from fedsim.config.compose import as_text, compose
from fedsim.core.errors import FedsimError
from fedsim.core.training import tensors_digest
from fedsim.defenses.integrity.proof.reproduction import stand_ins
from fedsim.integrity import forged_trace
from fedsim.integrity.forged_trace import (
    batches_file,
    judge_traces,
    proof_file,
    trace_delta,
    write_claims,
    write_trace,
)
from fedsim.integrity.leaned_trace import leaned_back, led_over_edges
from fedsim.integrity.training import batch_at, central_indices, train_centrally
from fedsim.integrity.trial import update_error
from fedsim.storage.folder import Storage
from fedsim.storage.runfolder import RunFolder

SETTINGS = (
    *DATA,
    "data.shape=[1,7,7]",
    "data.train_size=300",
    "model=softmax",
    "proof.steps=9",
    "proof.batch_size=60",
    "proof.learning_rate=0.01",
)


def test_a_trace_without_an_example_is_judged_from_its_folder_alone(tmp_path: Path, command) -> None:
    rules = ("forgery=[lattice,nearest]", "forge.examples=[7]", "hydra.run.dir=game")
    done = command("forge", *SETTINGS, *rules, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "lattice: examples [7] denied in 2 of 2 steps: the whole trace passes without them" in done.stdout
    folder = tmp_path / "game"
    assert sorted(path.name for path in (folder / "traces").iterdir()) == [
        "lattice.proof",
        "lattice.safetensors",
    ]
    judged = command("forge", "--check", "game", cwd=tmp_path)
    assert judged.returncode == 0, judged.stderr + judged.stdout
    lines = judged.stdout.splitlines()
    assert len(lines) == 4  # machines
    assert all(
        "9 steps done again" in line and line.endswith("passes as one that never used them") for line in lines
    )
    nothing = command("forge", "--check", ".", cwd=tmp_path)
    assert nothing.returncode == 1


def claimed(tmp_path: Path):
    """Return a storage, a training, the forged batch of the step that used example 7, and that step."""
    config = compose([*SETTINGS, "audit=proof_of_learning", "forgery=[greedy]", "name=test", "proof.steps=3"])
    game = build_central.forging_game(config)
    indices = [central_indices(game.training, step) for step in range(3)]
    step = next(number for number, own in enumerate(indices) if 7 in own.tolist())
    batch = batch_at(game.training, indices[step])
    return Storage(tmp_path), game.training, batch, step


def problems(storage: Storage, training) -> set[str]:
    return {verdict.problem for verdict in judge_traces(storage, training)}


def test_traces_that_do_not_hold_are_rejected_with_the_reason(tmp_path: Path) -> None:
    storage, training, batch, step = claimed(tmp_path)
    with pytest.raises(FedsimError, match=r"no forged trace is here.*Remedy"):
        list(judge_traces(storage, training))
    write_trace(storage, "honest", training, {}, [7])
    assert problems(storage, training) == {f"step {step}: an unwanted example is there"}
    storage.delete([proof_file("honest"), batches_file("honest")])

    # Another image and label in the place of every example: data, but not what the step was taken on.
    other = replace(batch, images=batch.images.flip(0).flip(3))
    write_trace(storage, "other", training, {step: other}, [7])
    found = problems(storage, training)
    assert found
    assert all("from what was recorded" in problem for problem in found)

    tensors, _ = storage.read_tensors(batches_file("other"))
    tensors["levels"][step, 0] = 255 - tensors["levels"][step, 0]
    storage.write_tensors(batches_file("other"), tensors)
    assert problems(storage, training) == {f"step {step}: the batch shown is not the one in the proof"}
    with pytest.raises(FedsimError, match="whole grey levels to write a trace of"):
        write_trace(storage, "real", training, {step: replace(batch, images=batch.images + 1e-4)}, [7])


@pytest.mark.slow
def test_batches_that_break_the_rules_of_a_table_or_text_are_no_data(tmp_path: Path, capsys) -> None:
    own = ("data=tabular", "data.train_size=60", "model=softmax", "proof.steps=2", "proof.batch_size=8")
    config = compose([*own, "audit=proof_of_learning", "forgery=[greedy]", "name=test"])
    game, folder = build_central.forging_game(config), RunFolder(tmp_path / "game")
    folder.begin("game", as_text(config))
    batch = batch_at(game.training, central_indices(game.training, 1))
    absent = next(number for number in range(60) if number not in central_indices(game.training, 0).tolist())
    (first, end), *_ = game.form.one_hot
    for name, kept in (("kept", True), ("broken", False)):
        images = batch.images.clone()
        images[:, :, :, first:end] = 0.0
        images[:, :, :, first : first + (1 if kept else 2)] = 1.0  # one choice, or two at once
        write_trace(folder.storage, name, game.training, {1: replace(batch, images=images)}, [absent])
    with pytest.raises(SystemExit):
        check_traces(folder.path)
    lines = capsys.readouterr().out.splitlines()
    broken = [line for line in lines if line.startswith("broken")]
    assert len(broken) == len(lines) // 2 == 4  # machines
    assert all(f"step 1: expected one choice among pixels {first} to {end - 1}" in line for line in broken)
    assert not any("expected one choice" in line for line in lines if line.startswith("kept"))


@pytest.mark.slow
def test_weights_that_lean_back_to_the_real_ones_after_a_forged_step_are_noticed(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(forged_trace, "stand_ins", lambda threads: stand_ins(threads)[::2])  # two are enough
    own = (
        *SETTINGS,
        "data.train_size=3000",
        "proof.steps=48",
        "audit=proof_of_learning",
        "name=test",
    )
    training = build_central.forging_game(compose([*own, "forgery=[greedy]"])).training
    storage, used = Storage(tmp_path), central_indices(training, 0)
    example, batch = int(used[0]), batch_at(training, used)
    delta = trace_delta(train_centrally(training, 1), training)
    model, images = training.fresh(0), batch.images.clone()
    while update_error(model, batch, replace(batch, images=images)) < 5 * delta:
        images[0, 0, 3, 3] = (torch.round(images[0, 0, 3, 3] * 255) + 1) % 256 / 255
    forged = {0: replace(batch, images=images)}
    write_trace(storage, "forged", training, forged, [example])
    assert all("from what was recorded" in problem for problem in problems(storage, training))
    storage.delete([proof_file("forged"), batches_file("forged")])

    trace, left = leaned_back(training, forged, 0.8 * delta)
    assert left == 0  # the last weights are those of the model in question
    write_claims(storage, "leaned", training, trace, forged, [example])
    for verdict in judge_traces(storage, training):
        assert 0.5 * delta < verdict.largest <= verdict.delta  # no interval tells it
        assert verdict.problem.startswith("what is claimed leans one way")
        assert verdict.model == tensors_digest(train_centrally(training, 1).checkpoints[-1])
    longer = {verdict.problem for verdict in judge_traces(storage, training, every=5)}
    assert longer == {"expected weights every 5 steps (forge.every), got 1"}


@pytest.mark.slow
def test_batches_that_stand_on_edges_at_every_step_do_not_lead_the_weights(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(forged_trace, "stand_ins", lambda threads: stand_ins(threads)[:1])
    model = ("model=mlp", "model.depth=2", "model.width=8", "data.train_size=1500", "proof.steps=24")
    own = (*SETTINGS, *model, "audit=proof_of_learning", "name=test", "forgery=[greedy]")
    training = build_central.forging_game(compose(own)).training
    trace, batches = led_over_edges(training)
    storage = Storage(tmp_path)
    write_claims(storage, "led", training, trace, batches, [unused(training)])
    (found,) = judge_traces(storage, training)
    assert found.largest <= found.delta  # each end is an honest one but for rounding
    assert found.leaps > 12
    assert "of 24 intervals need another rounding, at most 6 by chance" in found.problem
    monkeypatch.setattr(forged_trace, "OFTEN", 1.0)  # without the rule it passes: nothing else notices
    (found,) = judge_traces(storage, training)
    assert not found.problem


def unused(training) -> int:
    """Return an example that no step uses."""
    steps = [central_indices(training, step) for step in range(training.steps)]
    return min(set(range(len(training.train.labels))) - set(torch.cat(steps).tolist()))
