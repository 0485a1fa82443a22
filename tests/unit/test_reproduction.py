"""Studies of honest recomputation: by batch size, precision and machine."""

from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
import torch
from simulated_kernels import SEEN_BY, Kernel, Simulated, library, order, rounding, threads
from torch import nn

from fedsim.config import build_central
from fedsim.config.compose import compose
from fedsim.core.errors import FedsimError
from fedsim.core.training import Batch, arithmetic, load_weights, weights_of
from fedsim.data.synthetic import synthetic
from fedsim.defenses.integrity.proof import reproduction
from fedsim.defenses.integrity.proof.distances import distance
from fedsim.integrity.calibrate import study as studied
from fedsim.integrity.recomputation import accuracies, recompute
from fedsim.integrity.training import CentralTraining, train_centrally
from fedsim.models.layers import Normalize

DATA = synthetic(shape=(1, 16, 16), num_classes=4, train_size=96, test_size=8)


def fresh(number: int) -> nn.Module:
    """Return one convolution and one linear layer: enough for kernels to differ, and quick on any machine."""
    torch.manual_seed(500 + number)
    layers = (nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(216, 4))
    return nn.Sequential(Normalize(DATA.task), *layers).eval()


@pytest.fixture
def training() -> CentralTraining:
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
        study=(),
        intervals=(1, 4),
        batch_sizes=(8, 64, 1000),
    )


def found(training: CentralTraining, study: str) -> dict[tuple[str, str], float]:
    findings = list(studied(replace(training, study=(study,)), "l2"))
    assert {finding.study for finding in findings} == {study}
    return {(finding.case, finding.figure): finding.value for finding in findings}


def largest_of(training: CentralTraining, study: str) -> dict[str, float]:
    return {case: v for (case, figure), v in found(training, study).items() if figure == "largest l2"}


def one_unit(training: CentralTraining) -> float:
    """How far weights are from themselves when the last place of each is off by one."""
    weights = torch.cat([tensor.flatten() for tensor in weights_of(training.fresh(0)).values()])
    return torch.finfo(torch.float32).eps * float(weights.norm())


@pytest.mark.kernels
def test_errors_by_batch_size_are_small_and_zero_where_nothing_differs(training: CentralTraining) -> None:
    values = found(training, "batch_sizes")
    assert values.pop(("the model", "parameters")) == sum(p.numel() for p in fresh(0).parameters())
    assert {case.partition(",")[0] for case, _ in values} == {"b=8", "b=64", "b=96"}  # no more than there are
    assert len(values) == 3 * 5 * 2
    for size in (8, 64, 96):
        assert values[f"b={size}, the same", "largest l2"] == 0
        for what in ("2 threads", "permuted batch", "micro-batches", "other kernels"):
            largest, mean = (values[f"b={size}, {what}", f"{name} l2"] for name in ("largest", "mean"))
            assert 0 <= mean <= largest <= one_unit(training)  # zero: on a CPU that has it so


@pytest.mark.parametrize("kernel", SEEN_BY, ids=lambda kernel: kernel.__name__)
def test_each_kernel_is_seen_by_its_own_variation_alone(training: CentralTraining, kernel: Kernel) -> None:
    training = replace(training, fresh=lambda number: Simulated(kernel))
    largest = largest_of(training, "batch_sizes")
    for size in (8, 64, 96):
        exact = {"size": 0.75 * size, "threads": 1.0, "library": 1.0}  # between two gradients
        for what in ("the same", *SEEN_BY.values()):
            error = largest.pop(f"b={size}, {what}")
            if what != SEEN_BY[kernel]:
                assert error < 1e-8
            elif kernel is order:
                assert error > 1e-3
            else:
                assert error == pytest.approx(training.learning_rate * exact[kernel.__name__], rel=1e-5)
    assert not largest


@pytest.mark.kernels
def test_lower_precision_has_larger_errors_and_repeats_itself(training: CentralTraining) -> None:
    """Gradients of quarters of a batch are rounded to the precision each, on every CPU."""
    largest = largest_of(training, "precision")
    steps = train_centrally(training, 1).checkpoints
    longest = max(distance("l2", one, other) for one, other in pairwise(steps))
    assert len(largest) == 3 * 5
    for name in ("float32", "bfloat16", "float16"):
        assert largest[f"{name}, the same"] == 0
        low = torch.finfo(getattr(torch, name)).eps * longest
        assert all(v <= one_unit(training) + 10 * low for c, v in largest.items() if c.startswith(name))
        assert (largest[f"{name}, micro-batches"] > one_unit(training)) == (name != "float32")
    assert not torch.is_autocast_enabled("cpu")


def test_errors_of_rounding_follow_the_precision(training: CentralTraining) -> None:
    largest = largest_of(replace(training, fresh=lambda number: Simulated(rounding)), "precision")
    exact = largest["float32, permuted batch"]
    assert exact > 0
    for name in ("float32", "bfloat16", "float16"):
        coarser = torch.finfo(getattr(torch, name)).eps / torch.finfo(torch.float32).eps
        assert largest[f"{name}, permuted batch"] == pytest.approx(coarser * exact, rel=1e-4)
        assert largest[f"{name}, the same"] == 0
        for what in ("2 threads", "micro-batches", "other kernels"):
            assert largest[f"{name}, {what}"] < 1e-4 * coarser * exact


@pytest.mark.kernels
def test_the_matrix_of_machines_has_a_diagonal_of_zeros(training: CentralTraining) -> None:
    largest = largest_of(replace(training, steps=2), "machines")
    assert len(largest) == 16
    for case, value in largest.items():
        there, here = case.split(" -> ")
        assert value <= (0 if there == here else one_unit(training))
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize(("kernel", "words"), [(threads, "2 threads"), (library, "plain kernels")])
def test_machines_differ_where_one_alone_has_what_is_seen(training, kernel: Kernel, words: str) -> None:
    largest = largest_of(replace(training, fresh=lambda number: Simulated(kernel)), "machines")
    assert len(largest) == 16
    for case, value in largest.items():
        there, here = case.split(" -> ")
        differ = (words in there) != (words in here)
        assert value == pytest.approx(training.learning_rate * differ, rel=1e-5)


def test_accuracies_are_those_of_the_trained_model_on_every_machine(training: CentralTraining) -> None:
    training = replace(training, steps=5, learning_rate=0.5, batch_sizes=(8, 32), test=training.train)
    found = {(f.case, f.figure): f.value for f in accuracies(training, "l2")}
    assert len(found) == 2 * (4 + 1)
    for size in (8, 32):
        last = train_centrally(replace(training, batch_size=size), 5).checkpoints[-1]
        images = training.train.batch(torch.arange(len(training.train.labels)))
        model = training.fresh(0)
        load_weights(model, last)
        share = (model(images).argmax(dim=1) == training.train.labels).double().mean()
        assert found[f"b={size}, default", "accuracy"] == pytest.approx(float(share))
        own = [value for (case, figure), value in found.items() if case.startswith(f"b={size},")]
        assert found[f"b={size}", "largest difference"] == max(own) - min(own)


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
        again.append(recompute(model, whole, training, step, 1, variation))
    for one, other in zip(again, whole.checkpoints[1:], strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_recomputing_leaves_the_trace_as_it_was(training: CentralTraining) -> None:
    trace = train_centrally(training, 1)
    before = [{name: tensor.clone() for name, tensor in weights.items()} for weights in trace.checkpoints]
    model = fresh(0)
    for variation in reproduction.variations(training.threads):
        recompute(model, trace, training, 1, 2, variation)
    assert not all(torch.equal(weights_of(model)[name], before[1][name]) for name in before[1])
    for weights, kept in zip(trace.checkpoints, before, strict=True):
        assert all(torch.equal(weights[name], kept[name]) for name in weights)


@pytest.mark.parametrize("wrong", ["[]", "10", "[10,0]", "[10,1.5]", "[true]", "null"])
def test_batch_sizes_are_checked(wrong: str) -> None:
    config = compose(["audit=proof_of_learning", "name=test", f"proof.batch_sizes={wrong}"])
    with pytest.raises(
        FedsimError, match=r"proof\.batch_sizes: expected a list of whole numbers of at least 1"
    ):
        build_central.central_training(config)


def test_batch_sizes_come_from_the_config_and_unknown_studies_are_named() -> None:
    config = compose(["audit=proof_of_learning", "name=test", "proof.batch_sizes=[3,5]"])
    training = build_central.central_training(config)[1]
    assert training.batch_sizes == (3, 5)
    with pytest.raises(
        FedsimError, match=r"expected some of reproduction, batch_sizes, precision, machines.*'x'"
    ):
        studied(replace(training, study=("x",)), "l2")


def test_a_unit_on_the_edge_falls_on_both_sides_when_pixels_are_rounded_otherwise() -> None:
    unit = nn.Linear(2, 1)
    unit.weight.data = torch.tensor([[1.0, -1.0]])
    unit.bias.data.zero_()
    batch = Batch(images=torch.full((1, 2), 0.3), labels=torch.tensor([0]))
    ends = list[float]()
    for number in range(16):
        torch.manual_seed(0)
        model = nn.Sequential(unit, nn.ReLU(), nn.Linear(1, 2))
        start = weights_of(model)
        reproduction.rounded(number).step(model, batch, 0.1)
        ends.append(distance("l2", weights_of(model), start))
        load_weights(model, start)
    off = min(ends)
    sides = {end > off + 1e-4 for end in ends}
    assert sides == {False, True}
    near = [end for end in ends if end <= off + 1e-4]
    assert max(near) - min(near) < 1e-6  # otherwise nothing but rounding differs
