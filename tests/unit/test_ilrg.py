import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from attacks.none import NoAttack
from fedsim.attacks.privacy.labels.bias_corrected import BiasCorrected
from fedsim.attacks.privacy.labels.counts import estimate_batch_size, repair_counts
from fedsim.attacks.privacy.labels.gradinversion import GradInversion
from fedsim.attacks.privacy.labels.idlg import IDLG
from fedsim.attacks.privacy.labels.ilrg import ILRG, class_embeddings, pooled_embedding, solve_proportions
from fedsim.attacks.privacy.labels.last_layer import LastLayer, last_layer, restore_removed
from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Attack
from fedsim.core.types import Observation, Reconstruction, Task
from fedsim.models.last_linear import last_linear_name
from fedsim.models.lenet5 import lenet5
from fedsim.models.resnet import resnet

TASK = Task(input_shape=(1, 4, 4), num_classes=3)


def test_exact_probabilities_give_exact_counts() -> None:
    counts = torch.tensor([5.0, 0.0, 2.0], dtype=torch.float64)
    probabilities = torch.tensor([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6], [0.1, 0.6, 0.3]], dtype=torch.float64)
    bias_gradient = (probabilities.T @ counts - counts) / 7  # g_i = (sum_j k_j p_j[i] - k_i) / K
    solved, residual = solve_proportions(probabilities, bias_gradient)
    assert torch.allclose(solved * 7, counts)
    assert residual < 1e-12


def test_classes_whose_quotient_goes_too_far_get_the_embedding_of_all() -> None:
    random = torch.Generator().manual_seed(0)
    weight, bias = torch.randn(6, 4, generator=random).double(), torch.randn(6, generator=random).double()
    entries = torch.tensor([-0.3, 0.02, 0.2, -0.05, 0.13, 0.0], dtype=torch.float64)
    layer = LastLayer(
        weight=weight,
        bias=bias,
        weight_gradient=torch.randn(6, 4, generator=random).double(),
        bias_gradient=entries,
        num_examples=10,
    )
    pooled = pooled_embedding(layer)
    likely = torch.softmax(weight @ pooled + bias, dim=0).tolist()
    sizes = list[float]()  # of the weights in a class's quotient: below 0 of its own, above of the others
    for chance, entry in zip(likely[:5], entries.tolist(), strict=False):
        own = max(0.0, chance - entry) * (1 - chance)
        sizes.append((own + abs(entry + own)) / abs(entry))
    ordered = sorted(sizes)
    for low, high in zip([0.5, *ordered], [*ordered, 2 * ordered[-1]], strict=True):
        found = class_embeddings(layer, (low + high) / 2)
        for place, size in enumerate([*sizes, math.inf]):
            quotient = layer.weight_gradient[place] / entries[place]
            assert torch.allclose(found[place], quotient if size <= (low + high) / 2 else pooled)


@given(st.lists(st.floats(-5, 30), min_size=1, max_size=12), st.integers(1, 60))
def test_repaired_counts_are_whole_non_negative_and_sum_to_the_batch_size(values, total) -> None:
    counts = repair_counts(torch.tensor(values, dtype=torch.float64) / total, total)
    assert counts.dtype == torch.int64
    assert int(counts.sum()) == total
    assert int(counts.min()) >= 0


@given(st.lists(st.integers(0, 9), min_size=1, max_size=10).filter(any))
def test_repair_leaves_right_counts_alone(values: list[int]) -> None:
    right = torch.tensor(values, dtype=torch.float64)
    wobble = torch.sin(torch.arange(len(values), dtype=torch.float64))
    wobble = 0.4 * wobble / wobble.abs().sum().clamp(min=1)  # less than half an example in all
    for counts in (right, right + wobble):
        assert repair_counts(counts / sum(values), sum(values)).tolist() == values


@given(st.lists(st.integers(0, 9), min_size=2, max_size=10).filter(lambda v: math.gcd(*v) == 1))
def test_an_undisclosed_batch_size_is_found_when_the_counts_determine_it(values: list[int]) -> None:
    exact = torch.tensor(values, dtype=torch.float64) / sum(values)
    size = estimate_batch_size(exact)
    assert size <= sum(values)
    assert int((exact * size).round().sum()) == size


def test_a_restriction_of_the_classes_is_obeyed(observe) -> None:
    class OnlyTwo(Attack):
        def run(self, model, task, observations):
            return Reconstruction(class_presence=torch.tensor([True, False, True]))

    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    seen = observe(model, torch.rand(5, 1, 4, 4), torch.tensor([0, 0, 2, 2, 2]))
    guess = ILRG(classes=OnlyTwo()).run(model, TASK, [seen])
    assert guess.class_counts.tolist() == [2, 0, 3]
    with pytest.raises(FedsimError, match="names no class"):
        ILRG(classes=NoAttack()).run(model, TASK, [seen])
    wrong = observe(model, torch.rand(5, 1, 4, 4), torch.tensor([0, 1, 1, 1, 2]))
    assert int(ILRG(classes=OnlyTwo()).run(model, TASK, [wrong]).class_counts[1]) == 0


def test_a_single_example_is_restored_exactly(observe) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    for label in range(3):
        observation = observe(model, torch.rand(1, 1, 4, 4), torch.tensor([label]))
        guess = ILRG().run(model, TASK, [observation])
        assert guess.class_counts.tolist() == [int(c == label) for c in range(3)]
        assert IDLG().run(model, TASK, [observation]).class_presence.tolist() == [
            c == label for c in range(3)
        ]


def test_a_zero_bias_gradient_is_no_division_by_zero(observe) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    observation = observe(model, torch.rand(6, 1, 4, 4), torch.tensor([0, 1, 2, 0, 1, 2]))
    observation.received["1.bias"][1] = 0.0
    for limit in (5.0, math.inf):
        guess = ILRG(max_amplification=limit).run(model, TASK, [observation])
        assert bool(torch.isfinite(guess.embeddings).all())
        assert int(guess.class_counts.sum()) == 6
    observation.received["1.bias"].zero_()
    with pytest.raises(FedsimError, match="bias gradient is zero everywhere"):
        ILRG().run(model, TASK, [observation])


def test_removed_entries_of_the_bias_gradient_are_restored_from_the_weight_gradient() -> None:
    mean = torch.rand(20, dtype=torch.float64) + 0.5
    bias_gradient = torch.tensor([-0.4, 0.1, 0.25, 0.05], dtype=torch.float64)
    weight_gradient = bias_gradient[:, None] * mean
    weight_gradient[3, :12] = 0  # sparsified, eight entries survive
    removed = bias_gradient.clone()
    removed[3] = 0
    assert torch.allclose(restore_removed(removed, weight_gradient), bias_gradient)
    weight_gradient[3] = 0  # nothing survives: nothing is known
    assert float(restore_removed(removed, weight_gradient)[3]) == 0.0
    assert torch.equal(restore_removed(bias_gradient, weight_gradient), bias_gradient)


def test_the_last_linear_layer_is_found_by_its_place() -> None:
    class Odd(nn.Module):
        """Registers its last layer first."""

        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(5, 3)
            self.first = nn.Linear(16, 5)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.last(self.first(images.flatten(1)))

    assert last_linear_name(Odd(), (1, 4, 4)) == "last"
    assert (
        last_linear_name(lenet5(Task(input_shape=(3, 32, 32), num_classes=10)), (3, 32, 32)) == "head.output"
    )
    small = resnet(Task(input_shape=(3, 32, 32), num_classes=10)).eval()
    assert last_linear_name(small, (3, 32, 32)) == "network.fc"


def test_models_that_cannot_be_read_are_refused_with_the_remedy() -> None:
    with pytest.raises(FedsimError, match=r"no bias.*Remedy"):
        last_linear_name(nn.Sequential(nn.Flatten(), nn.Linear(16, 3, bias=False)), (1, 4, 4))
    with pytest.raises(FedsimError, match=r"does not end in a linear layer.*Remedy"):
        last_linear_name(nn.Sequential(nn.Flatten(), nn.Linear(16, 3), nn.ReLU()), (1, 4, 4))


def test_an_update_of_one_step_is_the_gradient_that_it_stands_for(observe) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    gradient = observe(model, torch.rand(5, 1, 4, 4), torch.tensor([0, 0, 0, 1, 1]))
    update = Observation(
        round=1,
        client=0,
        sent=gradient.sent,
        received={name: -0.05 * tensor for name, tensor in gradient.received.items()},
        kind="update",
        learning_rate=0.05,
        local_steps=1,
        num_examples=5,
    )
    read = last_layer(model, TASK, update)
    assert torch.allclose(read.bias_gradient, gradient.received["1.bias"].double(), atol=1e-9)
    assert ILRG().run(model, TASK, [update]).class_counts.tolist() == [3, 2, 0]


def test_what_is_not_disclosed_is_asked_for_where_it_is_needed(observe) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    seen = observe(model, torch.rand(1, 1, 4, 4), torch.tensor([1]))
    opposite = {name: -tensor for name, tensor in seen.received.items()}
    update = Observation(round=1, client=0, sent=seen.sent, received=opposite, kind="update", num_examples=1)
    with pytest.raises(FedsimError, match="learning_rate and local_steps"):
        ILRG().run(model, TASK, [update])
    for signs in (IDLG(), GradInversion()):  # they need signs alone
        assert signs.run(model, TASK, [update]).class_presence.tolist() == [False, True, False]
    unsized = observe(model, torch.rand(5, 1, 4, 4), torch.tensor([0, 0, 0, 1, 1]), num_examples=None)
    with pytest.raises(FedsimError, match="num_examples"):
        BiasCorrected().run(model, TASK, [unsized])
