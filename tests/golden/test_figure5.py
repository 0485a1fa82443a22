"""Figure 5 of Ma et al. (ICLR 2023) in finer steps: restored labels behind noise and sparsification.

LnAcc of `ilrg` on LeNet-5/CIFAR-10, K=24, 50 batches over 5 initialisations; measured here. The authors:
1, 1, .805 at sigma 1e-4, 1e-3, 1e-2 and .755, .11, .07 at 10, 40, 80 % sparsity.
"""

from itertools import pairwise

import pytest
import torch

from fedsim.attacks.privacy.labels.ilrg import ILRG
from fedsim.core.interfaces import Defense
from fedsim.core.randomness import generator
from fedsim.core.training import batch_gradient
from fedsim.core.types import Observation, Truth
from fedsim.data.cifar10_small import cifar10_small
from fedsim.defenses.privacy.noise import Noise
from fedsim.defenses.privacy.sparsify import Sparsify
from fedsim.metrics.lnacc import LnAcc
from fedsim.models.lenet5 import lenet5

NOISE = {0.001: 1.0, 0.01: 0.976, 0.02: 0.754, 0.03: 0.558, 0.05: 0.370, 0.1: 0.214}
SPARSITY = {0.1: 1.0, 0.4: 0.968, 0.6: 0.888, 0.8: 0.754, 0.9: 0.674}
BATCHES, SIZE = 40, 24


@pytest.fixture(scope="module")
def gradients():
    """Batches, their gradients and the models that they are of."""
    data, made = cifar10_small(), []
    for number in range(BATCHES):
        if number % 10 == 0:
            torch.manual_seed(300 + number)
            model = lenet5(data.task).eval()
        chosen = torch.randperm(len(data.train.labels), generator=generator(number, "figure 5"))[:SIZE]
        images, labels = data.train.batch(chosen), data.train.labels[chosen]
        truth = Truth(round=1, client=0, images=images, labels=labels)
        made.append((model, batch_gradient(model, images, labels)[0], truth))
    return data.task, made


def restored(gradients, defense: Defense) -> float:
    task, made = gradients
    values = []
    for number, (model, gradient, truth) in enumerate(made):
        seen = Observation(
            round=1,
            client=0,
            sent={name: p.detach() for name, p in model.named_parameters()},
            received=defense.on_reply(gradient, "gradient", generator(number, "defense")),
            kind="gradient",
            num_examples=SIZE,
        )
        values.append(LnAcc().score(ILRG().run(model, task, [seen]), truth).value)
    return sum(values) / len(values)


@pytest.mark.parametrize(
    ("table", "make"),
    [(NOISE, lambda sigma: Noise(sigma=sigma)), (SPARSITY, lambda rate: Sparsify(rate=rate))],
    ids=["noise", "sparsity"],
)
def test_labels_fade_with_noise_and_with_sparsity(gradients, table, make) -> None:
    found = {setting: restored(gradients, make(setting)) for setting in table}
    assert found == pytest.approx(table, abs=0.06)
    assert all(stronger <= weaker + 0.01 for weaker, stronger in pairwise(found.values()))
    assert found[max(table)] < 0.75 < 0.95 < found[min(table)]


def test_undefended_labels_are_whole(gradients) -> None:
    assert restored(gradients, Defense()) == 1.0
