"""What must hold for every attack that restores counts, whatever the batch."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedsim.attacks.privacy.labels.bias_corrected import BiasCorrected
from fedsim.attacks.privacy.labels.gradinversion import GradInversion
from fedsim.attacks.privacy.labels.ilrg import ILRG
from fedsim.attacks.privacy.labels.ilrg_pooled import ILRGPooled
from fedsim.attacks.privacy.labels.ilrg_public import ILRGPublic
from fedsim.attacks.privacy.labels.rlu import RLU
from fedsim.core.training import batch_gradient
from fedsim.core.types import Observation, PublicImages, Task, Truth
from fedsim.metrics.leacc import LeAcc
from fedsim.metrics.lnacc import LnAcc

CLASSES = 5
TASK = Task(input_shape=(1, 3, 4), num_classes=CLASSES)
RANDOM = torch.Generator().manual_seed(0)
PUBLIC = PublicImages(
    images=torch.rand(40, 1, 3, 4, generator=RANDOM), labels=torch.arange(40, dtype=torch.int64) % CLASSES
)
ATTACKS = {
    "ilrg": ILRG(),
    "ilrg restricted": ILRG(classes=GradInversion()),
    "pooled": ILRGPooled(),
    "public": ILRGPublic(public=PUBLIC),
    "rlu": RLU(public=PUBLIC, samples=20, iterations=2),
    "bias corrected": BiasCorrected(),
}
LABELS = st.lists(st.integers(0, CLASSES - 1), min_size=1, max_size=20)


def make_model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, CLASSES))


def see(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> Observation:
    gradient, _ = batch_gradient(model, images, labels)
    sent = {name: p.detach().clone() for name, p in model.named_parameters()}
    return Observation(
        round=1, client=0, sent=sent, received=gradient, kind="gradient", num_examples=len(labels)
    )


def batch(labels: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(len(labels))
    return torch.rand(len(labels), 1, 3, 4, generator=random), torch.tensor(labels)


@pytest.mark.parametrize("name", ATTACKS)
@given(labels=LABELS)
@settings(max_examples=25, deadline=None)
def test_counts_are_non_negative_and_sum_to_the_batch_size(name: str, labels: list[int]) -> None:
    model = make_model()
    images, truth_labels = batch(labels)
    guess = ATTACKS[name].run(model, TASK, [see(model, images, truth_labels)])
    assert int(guess.class_counts.min()) >= 0
    assert int(guess.class_counts.sum()) == len(labels)
    assert torch.equal(guess.class_presence, guess.class_counts > 0)
    truth = Truth(round=1, client=0, images=images, labels=truth_labels)
    assert LnAcc().score(guess, truth).value <= LeAcc().score(guess, truth).value


@pytest.mark.parametrize("name", ["ilrg", "pooled", "bias corrected"])
@given(labels=LABELS, order=st.permutations(range(CLASSES)))
@settings(max_examples=25, deadline=None)
def test_permuting_classes_permutes_counts(name: str, labels: list[int], order: list[int]) -> None:
    model, (images, true) = make_model(), batch(labels)
    straight = ATTACKS[name].run(model, TASK, [see(model, images, true)]).class_counts
    permuted = make_model()
    with torch.no_grad():  # class c of the permuted problem is class order[c] of the first
        permuted[3].weight.copy_(model[3].weight[order])
        permuted[3].bias.copy_(model[3].bias[order])
    renamed = torch.tensor([order.index(label) for label in labels])
    counts = ATTACKS[name].run(permuted, TASK, [see(permuted, images, renamed)]).class_counts
    # Ties between equal fractions may break the other way, so one example may change places.
    assert int((counts - straight[order]).abs().sum()) <= 2
    assert int(counts.sum()) == len(labels)


@given(labels=st.lists(st.integers(0, CLASSES - 1), min_size=2, max_size=10), times=st.integers(2, 4))
@settings(max_examples=25, deadline=None)
def test_a_duplicated_batch_has_the_same_gradient_and_multiplied_counts(
    labels: list[int], times: int
) -> None:
    model, (images, true) = make_model(), batch(labels)
    once = see(model, images, true)
    many = see(model, images.repeat(times, 1, 1, 1), true.repeat(times))
    for name in once.received:
        assert torch.allclose(once.received[name], many.received[name], atol=1e-6)
    single = ILRG().run(model, TASK, [once]).class_counts
    multiple = ILRG().run(model, TASK, [many]).class_counts
    assert float((multiple / times - single).abs().max()) <= 1.0
