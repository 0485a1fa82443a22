"""The paper's own attack, against its program retold: class by class, in digits, with a pseudo-inverse."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedsim.attacks.privacy.labels.gradinversion import GradInversion
from fedsim.attacks.privacy.labels.ilrg import ILRG
from fedsim.attacks.privacy.labels.ilrg_paper import ILRGPaper
from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Attack
from fedsim.core.training import Batch, sgd_step
from fedsim.core.types import Observation, Reconstruction, Task
from fedsim.data.images import Dataset
from fedsim.data.mnist_small import mnist_small
from fedsim.models.fcn3 import fcn3

SIZES = (8, 24, 64)
FEW = 600  # images: so few are learnt by heart, and gradients nearly vanish


def told_quotient(weight_entry: float, bias_entry: float) -> float:
    digits, power = f"{weight_entry:e}".split("e")
    bias_digits, bias_power = f"{bias_entry:e}".split("e")
    if float(bias_digits) == 0:
        bias_digits, bias_power = "1", "-64"
    exponent = min(10, max(-10, int(power) - int(bias_power)))
    return float(digits) / float(bias_digits) * 10.0**exponent


def told_counts(layer: nn.Linear, seen: Observation, name: str, classes: list[int]) -> list[int]:
    """Restore the counts of these classes by their equations alone."""
    size, bias = seen.num_examples, seen.received[f"{name}.bias"].tolist()
    rows, system, wanted = seen.received[f"{name}.weight"].tolist(), [[1.0] * len(classes)], [float(size)]
    softmaxes = {}
    for label in classes:
        embedding = torch.tensor([told_quotient(entry, bias[label]) for entry in rows[label]])
        with torch.no_grad():
            softmaxes[label] = layer(embedding).softmax(dim=0).tolist()
    for row in classes:
        system.append([softmaxes[column][row] - (column == row) for column in classes])
        wanted.append(size * bias[row])
    counts = [0] * len(bias)
    for label, found in zip(classes, np.linalg.pinv(np.array(system)) @ np.array(wanted), strict=True):
        counts[label] = round(found) if 0 < round(found) <= size else 0
    return counts


def trained(data: Dataset, seed: int, steps: int) -> nn.Module:
    torch.manual_seed(seed)
    model, random = fcn3(data.task).eval(), torch.Generator().manual_seed(seed)
    for _ in range(steps):
        indices = torch.randint(FEW, (64,), generator=random)
        sgd_step(model, Batch(images=data.train.batch(indices), labels=data.train.labels[indices]), 0.1)
    return model


def sparsified(seen: Observation) -> None:
    for tensor in seen.received.values():
        tensor[tensor.abs() <= tensor.abs().quantile(0.3)] = 0


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("steps", [0, 300])
def test_it_counts_as_the_authors_program_does(observe, seed: int, steps: int) -> None:
    data = mnist_small()
    model, random, differs = trained(data, seed, steps), torch.Generator().manual_seed(seed), 0
    name, layer = list(model.named_modules())[-1]
    for batch in range(12):
        indices = torch.randperm(FEW, generator=random)[: SIZES[batch % 3]]
        seen = observe(model, data.train.batch(indices), data.train.labels[indices])
        if batch >= 9:
            sparsified(seen)  # rows whose bias gradient is zero
        guess = ILRGPaper().run(model, data.task, [seen])
        assert guess.class_counts.tolist() == told_counts(layer, seen, name, list(range(10)))
        present = GradInversion().run(model, data.task, [seen]).class_presence
        restricted = ILRGPaper(classes=GradInversion()).run(model, data.task, [seen])
        named = present.nonzero().flatten().tolist()
        assert restricted.class_counts.tolist() == told_counts(layer, seen, name, named)
        differs += ILRG().run(model, data.task, [seen]).class_counts.tolist() != guess.class_counts.tolist()
    assert differs > 0  # ours has other answers


class Named(Attack):
    """Says that classes 0 and 2 are there."""

    def run(self, model, task, observations) -> Reconstruction:
        return Reconstruction(class_presence=torch.tensor([True, False, True]))


def small(bias_gradient: list[float], weight_gradient: Tensor) -> tuple[nn.Module, Task, Observation]:
    torch.manual_seed(0)
    model, task = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), Task(input_shape=(1, 2, 2), num_classes=3)
    seen = Observation(
        round=1,
        client=0,
        sent={name: p.detach() for name, p in model.named_parameters()},
        received={"1.weight": weight_gradient, "1.bias": torch.tensor(bias_gradient)},
        kind="gradient",
        num_examples=6,
    )
    return model, task, seen


def test_a_count_above_the_batch_size_is_none() -> None:
    model, task, seen = small([-3.0, 1.0, 2.0], torch.rand(3, 4))
    assert told_counts(model[1], seen, "1", [0, 1, 2])[0] == 0
    assert ILRGPaper().run(model, task, [seen]).class_counts[0] == 0
    assert (
        ILRG(max_amplification=float("inf"), rounding="nearest").run(model, task, [seen]).class_counts[0] > 6
    )


def test_powers_of_ten_are_capped() -> None:
    rows = torch.tensor([[3e-3, 0, 0, 0], [2e-20, 2e-8, 0, 0], [5e-3, 0, 0, 0]])
    model, task, seen = small([0.0, 2e-9, 1e-16], rows)
    found = ILRGPaper().run(model, task, [seen]).embeddings
    assert torch.allclose(found[:, 0], torch.tensor([3e10, 1e-10, 5e10]))
    assert float(found[1, 1]) == pytest.approx(10)


def test_equations_of_classes_that_are_not_named_are_dropped_with_their_unknowns() -> None:
    model, task, seen = small([-0.3, 0.1, 0.2], torch.rand(3, 4))
    counts = ILRGPaper(classes=Named()).run(model, task, [seen]).class_counts.tolist()
    seen.received["1.bias"][1] = 0.4  # the equation of class 1 says something else, and is not asked
    assert ILRGPaper(classes=Named()).run(model, task, [seen]).class_counts.tolist() == counts
    assert counts == told_counts(model[1], seen, "1", [0, 2])


def test_it_needs_the_batch_size(observe) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    seen = observe(model, torch.rand(2, 1, 2, 2), torch.tensor([0, 1]), num_examples=None)
    with pytest.raises(FedsimError, match=r"ilrg_paper needs the number of examples.*Remedy"):
        ILRGPaper().run(model, Task(input_shape=(1, 2, 2), num_classes=3), [seen])
