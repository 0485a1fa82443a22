import pytest
import torch

from fedsim.core.types import Reconstruction, Truth
from fedsim.metrics.irec import IRec
from fedsim.metrics.label_counts import baseline_counts
from fedsim.metrics.leacc import LeAcc
from fedsim.metrics.lnacc import LnAcc

# Classes 0, 0, 0, 1, 3 of four: counts 3, 1, 0, 1.
TRUTH = Truth(round=1, client=0, images=torch.zeros(5, 1, 2, 2), labels=torch.tensor([0, 0, 1, 0, 3]))
GUESS = Reconstruction(class_counts=torch.tensor([2, 2, 0, 1]))


def test_numbers_that_a_person_can_check() -> None:
    assert LeAcc().score(GUESS, TRUTH).value == 1.0  # all four presences are right
    assert LnAcc().score(GUESS, TRUTH).value == 0.5  # classes 2 and 3
    assert IRec().score(GUESS, TRUTH).value == pytest.approx(4 / 5)  # 2 + 1 + 0 + 1 of five


def test_a_blind_guess_deals_the_average_to_every_class() -> None:
    assert baseline_counts(5, 4).tolist() == [1, 1, 1, 1]
    assert baseline_counts(24, 10).tolist() == [2] * 10
    assert baseline_counts(128, 1000).tolist() == [0] * 1000
    assert LeAcc().score(GUESS, TRUTH).baseline == 0.75
    assert LnAcc().score(GUESS, TRUTH).baseline == 0.5
    assert IRec().score(GUESS, TRUTH).baseline == pytest.approx(3 / 5)


def test_presence_alone_is_scored_as_presence_alone() -> None:
    guess = Reconstruction(class_presence=torch.tensor([True, False, False, True]))
    assert LeAcc().score(guess, TRUTH).value == 0.75
    assert LnAcc().score(guess, TRUTH) is None
    assert IRec().score(guess, TRUTH) is None


def test_what_was_not_recovered_is_not_scored() -> None:
    for metric in (LeAcc(), LnAcc(), IRec()):
        assert metric.score(Reconstruction(), TRUTH) is None
