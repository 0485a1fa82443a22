"""Counts of next tokens out of an output layer's gradient, by features that are drawn at random."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsim.attacks.privacy.text.next_tokens import NextTokens
from fedsim.core.errors import FedsimError
from fedsim.core.inputs import Tokens
from fedsim.core.types import Observation, Task

FEATURES = 24


def task(tokens: int) -> Task:
    form = Tokens(vocabulary=tuple(map(str, range(tokens))), length=5, continued=True)
    return Task(input_shape=(5,), num_classes=tokens, inputs=form)


def seen(seed: int, places: int, tokens: int) -> tuple[nn.Module, Observation, Tensor]:
    """Return a model that expects tokens at random, the gradient of as many places, and the true counts."""
    random = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(FEATURES, tokens))
    sent = {
        "0.weight": 0.5 * torch.randn(tokens, FEATURES, generator=random),
        "0.bias": torch.zeros(tokens),
    }
    model.load_state_dict(sent)
    features = torch.randn(places, FEATURES, generator=random)
    labels = torch.randint(tokens, (places,), generator=random)
    loss = functional.cross_entropy(model(features), labels)
    gradient = dict(zip(sent, torch.autograd.grad(loss, list(model.parameters())), strict=True))
    observation = Observation(
        round=1, client=0, sent=sent, received=gradient, kind="gradient", num_examples=2
    )
    return model, observation, labels.bincount(minlength=tokens)


@pytest.mark.parametrize("seed", [0, 1, 2, 3])  # bounds tell all of 1; the others are searched for
def test_tokens_that_bounds_leave_open_are_found_place_by_place(seed: int) -> None:
    model, observation, true = seen(seed, 9, 20)
    found = NextTokens().run(model, task(20), [observation])
    assert torch.equal(found.class_counts, true)
    assert torch.equal(found.class_presence, true > 0)
    assert torch.equal(found.token_presence, true > 0)
    assert torch.equal(found.count_bounds, torch.stack([true, true]))


def test_without_time_bounds_alone_are_told() -> None:
    model, observation, true = seen(0, 9, 20)
    found = NextTokens(seconds=1e-9).run(model, task(20), [observation])
    low, high = found.count_bounds
    assert torch.equal(found.class_counts, low)
    assert int(low.sum()) < 9
    assert bool((low <= true).all())
    assert bool((true <= high).all())
    assert torch.equal(high - low, torch.full_like(low, 9 - int(low.sum())))


def test_an_output_layer_without_gradient_or_bias_is_refused() -> None:
    model, observation, _ = seen(0, 9, 20)
    still = {name: torch.zeros_like(tensor) for name, tensor in observation.received.items()}
    nothing = Observation(
        round=1, client=0, sent=observation.sent, received=still, kind="gradient", num_examples=2
    )
    with pytest.raises(FedsimError, match="gradient is zero"):
        NextTokens().run(model, task(20), [nothing])
    with pytest.raises(FedsimError, match="20 tokens with a bias, got one without a bias"):
        NextTokens().check(nn.Sequential(nn.Linear(FEATURES, 20, bias=False)), task(20))
    with pytest.raises(FedsimError, match="21 tokens with a bias, got none"):
        NextTokens().check(model, task(21))
