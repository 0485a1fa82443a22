"""Studies of honest recomputation: by batch size, precision and machine."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from defenses.integrity.proof import reproduction
from defenses.integrity.proof.calibrate import calibrate
from defenses.integrity.proof.central import train_centrally
from fedsim import build
from fedsim.data.synthetic import synthetic
from fedsim.errors import FedsimError
from fedsim.interfaces import CentralTraining
from fedsim.models.layers import Normalize
from fedsim.training import arithmetic, load_weights, weights_of

DATA = synthetic(shape=(1, 16, 16), num_classes=4, train_size=96, test_size=8)


def fresh(number: int) -> nn.Module:
    """Return one convolution and one linear layer: enough for kernels to differ, and quick on any machine."""
    torch.manual_seed(500 + number)
    layers = (nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(216, 4))
    return nn.Sequential(Normalize(DATA.task), *layers).eval()


@pytest.fixture
def training(tmp_path: Path) -> CentralTraining:
    torch.set_num_threads(1)
    return CentralTraining(
        fresh=fresh,
        train=DATA.train,
        task=DATA.task,
        steps=4,
        batch_size=32,
        learning_rate=0.01,
        precision="float32",
        seed=3,
        keys=None,
        threads=1,
        folder=tmp_path,
        study=(),
        intervals=(1, 4),
        batch_sizes=(8, 64, 1000),
    )


def found(training: CentralTraining, study: str) -> dict[tuple[str, str], float]:
    findings = calibrate(replace(training, study=(study,)), "l2")
    assert {finding.study for finding in findings} == {study}
    return {(finding.case, finding.figure): finding.value for finding in findings}


def test_errors_by_batch_size_are_small_and_zero_where_nothing_differs(training: CentralTraining) -> None:
    values = found(training, "batch_sizes")
    assert values.pop(("the model", "parameters")) == sum(p.numel() for p in fresh(0).parameters())
    assert {case.partition(",")[0] for case, _ in values} == {"b=8", "b=64", "b=96"}  # no more than there are
    assert len(values) == 3 * 5 * 2
    for size in (8, 64, 96):
        assert values[f"b={size}, the same", "largest l2"] == 0
        for what in ("permuted batch", "micro-batches"):
            largest, mean = (values[f"b={size}, {what}", f"{name} l2"] for name in ("largest", "mean"))
            assert 0 < mean <= largest < 1e-6


def test_lower_precision_has_larger_errors_and_repeats_itself(training: CentralTraining) -> None:
    values = found(training, "precision")
    largest = {case: value for (case, figure), value in values.items() if figure == "largest l2"}
    assert len(largest) == 3 * 5
    for name in ("float32", "bfloat16", "float16"):
        assert largest[f"{name}, the same"] == 0
    exact, half, brain = (largest[f"{n}, permuted batch"] for n in ("float32", "float16", "bfloat16"))
    assert 0 < 10 * exact < half < brain < 1e-2
    assert not torch.is_autocast_enabled("cpu")


def test_the_matrix_of_machines_has_a_diagonal_of_zeros(training: CentralTraining) -> None:
    values = found(replace(training, steps=2), "machines")
    largest = {tuple(case.split(" -> ")): v for (case, figure), v in values.items() if figure == "largest l2"}
    assert len(largest) == 16
    assert all(value == 0 for (there, here), value in largest.items() if there == here)
    assert 0 < largest["default", "plain kernels"] < 1e-6
    assert 0 < largest["plain kernels", "default"] < 1e-6
    assert torch.get_num_threads() == 1


def test_autocast_follows_the_weights_from_step_to_step(training: CentralTraining) -> None:
    """With torch's cache of casts, steps in one context would all start from the first one's weights."""
    training = replace(training, learning_rate=0.5)
    around = partial(arithmetic, "bfloat16")
    with around():
        whole = train_centrally(training, 1)
    model = fresh(0)
    load_weights(model, whole.checkpoints[0])
    again = []
    for step in range(training.steps):  # a context a step
        variation = reproduction.Variation(name="bfloat16", around=around)
        load_weights(model, whole.checkpoints[step])
        again.append(reproduction._recompute(model, whole, training, step, 1, variation))
    for one, other in zip(again, whole.checkpoints[1:], strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_recomputing_leaves_the_trace_as_it_was(training: CentralTraining) -> None:
    trace = train_centrally(training, 1)
    before = [{name: tensor.clone() for name, tensor in weights.items()} for weights in trace.checkpoints]
    model = fresh(0)
    for variation in reproduction.variations(training.threads):
        reproduction._recompute(model, trace, training, 1, 2, variation)
    assert not all(torch.equal(weights_of(model)[name], before[1][name]) for name in before[1])
    for weights, kept in zip(trace.checkpoints, before, strict=True):
        assert all(torch.equal(weights[name], kept[name]) for name in weights)


@pytest.mark.parametrize("wrong", ["[]", "10", "[10,0]", "[10,1.5]", "[true]", "null"])
def test_batch_sizes_are_checked(wrong: str, tmp_path: Path) -> None:
    config = build.compose(["audit=proof_of_learning", "name=test", f"proof.batch_sizes={wrong}"])
    with pytest.raises(
        FedsimError, match=r"proof\.batch_sizes: expected a list of whole numbers of at least 1"
    ):
        build.central_training(config, tmp_path)


def test_batch_sizes_come_from_the_config_and_unknown_studies_are_named(tmp_path: Path) -> None:
    config = build.compose(["audit=proof_of_learning", "name=test", "proof.batch_sizes=[3,5]"])
    training = build.central_training(config, tmp_path)[1]
    assert training.batch_sizes == (3, 5)
    with pytest.raises(
        FedsimError, match=r"expected some of reproduction, batch_sizes, precision, machines.*'x'"
    ):
        calibrate(replace(training, study=("x",)), "l2")
