"""One attack on one observation: its own model, undisturbed generators, failures as faults."""

import random

import numpy as np
import pytest
import torch

from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Attack
from fedsim.core.types import Fault, Interrupted, Reconstruction, Task
from fedsim.flower.attack_one import Refusal, attack_one
from fedsim.models.softmax import softmax

TASK = Task(input_shape=(1, 4, 4), num_classes=3)


class Does(Attack):
    """Does what it is told to."""

    def __init__(self, what) -> None:
        self.what = what

    def run(self, model, task, observations):
        return self.what(model, observations)


@pytest.fixture
def seen(observe):
    return observe(softmax(TASK).eval(), torch.rand(5, 1, 4, 4), torch.tensor([0, 1, 2, 2, 0]))


def draws(model, observations) -> Reconstruction:
    torch.rand(1), random.random(), np.random.rand()  # noqa: NPY002
    sent = observations[-1].sent
    assert all(torch.equal(p, sent[name]) for name, p in model.named_parameters())
    assert torch.is_grad_enabled()
    return Reconstruction()


def test_the_model_holds_what_was_sent_and_the_generators_stay_as_they_are(seen) -> None:
    model = softmax(TASK).eval()
    torch.manual_seed(1), random.seed(1), np.random.seed(1)  # noqa: NPY002
    with torch.no_grad():
        assert isinstance(attack_one(Does(draws), model, TASK, seen), Reconstruction)
    after = float(torch.rand(1)), random.random(), np.random.rand()  # noqa: NPY002
    torch.manual_seed(1), random.seed(1), np.random.seed(1)  # noqa: NPY002
    assert after == (float(torch.rand(1)), random.random(), np.random.rand())  # noqa: NPY002


def test_failures_are_faults_and_refusals_are_told_apart(seen) -> None:
    def fail(error: BaseException):
        def raises(model, observations):
            raise error

        return attack_one(Does(raises), softmax(TASK).eval(), TASK, seen)

    crash, refusal = fail(ZeroDivisionError("oops")), fail(FedsimError("no bias. Remedy: one"))
    assert type(crash) is Fault
    assert crash.reason == "the attack failed: ZeroDivisionError: oops"
    assert type(refusal) is Refusal
    assert refusal.reason == "the attack failed: no bias. Remedy: one"
    assert (crash.round, crash.client) == (seen.round, seen.client)
    with pytest.raises(Interrupted):
        fail(Interrupted(Reconstruction()))


def test_a_model_that_does_not_fit_is_a_refusal(seen) -> None:
    other = softmax(Task(input_shape=(1, 5, 5), num_classes=3)).eval()
    found = attack_one(Does(draws), other, TASK, seen)
    assert isinstance(found, Refusal)
    assert "does not fit the weights" in found.reason
