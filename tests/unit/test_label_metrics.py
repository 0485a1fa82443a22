import itertools
from collections.abc import Sequence

import pytest
import torch

from fedsim.core.interfaces import Metric
from fedsim.core.prior import Prior
from fedsim.core.types import Reconstruction, Score, Truth
from fedsim.data.blind_batches import Rules, blind_batches
from fedsim.metrics.baselines import scored
from fedsim.metrics.irec import IRec
from fedsim.metrics.label_counts import restored, same_count, same_presence
from fedsim.metrics.leacc import LeAcc
from fedsim.metrics.lnacc import LnAcc

# Classes 0, 0, 0, 1, 3 of four: counts 3, 1, 0, 1.
TRUTH = Truth(round=1, client=0, images=torch.zeros(5, 1, 2, 2), labels=torch.tensor([0, 0, 1, 0, 3]))
NATURAL = Rules()
GUESS = Reconstruction(class_counts=torch.tensor([2, 2, 0, 1]))


def test_numbers_that_a_person_can_check() -> None:
    assert LeAcc().score(GUESS, TRUTH).value == 1.0  # all four presences are right
    assert LnAcc().score(GUESS, TRUTH).value == 0.5  # classes 2 and 3
    assert IRec().score(GUESS, TRUTH).value == pytest.approx(4 / 5)  # 2 + 1 + 0 + 1 of five


def test_labels_beyond_the_batch_cost() -> None:
    everything = Reconstruction(class_counts=torch.tensor([5, 5, 5, 5]))
    assert IRec().score(everything, TRUTH).value == pytest.approx(5 / 20)
    below = Reconstruction(class_counts=torch.tensor([3, 1, 2, -5]))  # none of a class is none of it
    assert IRec().score(below, TRUTH).value == pytest.approx(4 / 6)


def blind(metric, classes: int, number: int, rules: Rules = NATURAL) -> list[int]:
    """Return a metric's blind counts of a batch."""
    frequencies = (1 / classes,) * classes
    prior = Prior(num_examples=number, batches=blind_batches(rules, frequencies, number))
    (guess,) = metric.blind(prior)
    assert int(guess.class_counts.sum()) == number  # whatever pays best, it is a batch
    assert guess.class_presence.equal(guess.class_counts > 0)
    return guess.class_counts.tolist()


@pytest.mark.parametrize("metric", [LeAcc(), LnAcc(), IRec()])
@pytest.mark.parametrize(("classes", "number"), [(2, 5), (5, 6)])
@pytest.mark.parametrize("rules", [NATURAL, Rules(partition="dirichlet", alpha=0.3, clients=5)])
def test_no_counts_do_better_without_a_gradient(metric, classes: int, number: int, rules: Rules) -> None:
    drawn = blind_batches(rules, (1 / classes,) * classes, number)
    agreement = {LeAcc: same_presence, LnAcc: same_count, IRec: restored}[type(metric)]

    def mean(counts: Sequence[int]) -> float:
        return float(agreement(torch.tensor(counts)[None], drawn).double().sum(dim=1).mean())

    every = [c for c in itertools.product(range(number + 1), repeat=classes) if sum(c) == number]
    assert mean(blind(metric, classes, number, rules)) == pytest.approx(max(map(mean, every)))


def test_blind_counts_know_the_rules_of_the_federation() -> None:
    assert sorted(blind(IRec(), 10, 17)) == [1, 1, 1, 2, 2, 2, 2, 2, 2, 2]
    assert sum(count > 0 for count in blind(LnAcc(), 100, 17)) == 1  # most classes are absent: one takes all
    assert max(blind(LnAcc(), 10, 30, Rules(labels="uniform"))) == 3
    assert max(blind(LnAcc(), 10, 30, Rules(labels="repeated"))) == 30
    dirichlet = Rules(partition="dirichlet", alpha=0.05, clients=10)
    assert max(blind(LnAcc(), 10, 30, dirichlet)) == 30
    two = blind_batches(Rules(partition="pathological", classes_per_client=2), (0.1,) * 10, 30)
    assert int((two > 0).sum(dim=1).max()) == 2


def test_frequencies_of_classes_are_known() -> None:
    prior = Prior(num_examples=8, batches=blind_batches(NATURAL, (0.9, 0.1), 8))
    (guess,) = IRec().blind(prior)
    assert guess.class_counts.tolist() in ([8, 0], [7, 1])


def test_a_sum_over_clients_is_drawn_client_by_client() -> None:
    rules = Rules(partition="pathological", classes_per_client=1)
    together = blind_batches(rules, (0.1,) * 10, 12, 3)
    assert set(together[together > 0].tolist()) <= {4, 8, 12}


def test_presence_alone_is_scored_as_presence_alone() -> None:
    guess = Reconstruction(class_presence=torch.tensor([True, False, False, True]))
    assert LeAcc().score(guess, TRUTH).value == 0.75
    assert LnAcc().score(guess, TRUTH) is None
    assert IRec().score(guess, TRUTH) is None


def test_what_was_not_recovered_is_not_scored() -> None:
    for metric in (LeAcc(), LnAcc(), IRec()):
        assert metric.score(Reconstruction(), TRUTH) is None


def test_a_metric_of_ones_own_gets_its_baseline_by_itself() -> None:
    class Largest(Metric):
        """How far the largest count is from the true one."""

        highest = False

        def score(self, guess: Reconstruction, truth: Truth) -> Score | None:
            if guess.class_counts is None:
                return None
            true = truth.labels.bincount()
            return Score(metric="largest", value=abs(int(guess.class_counts.max()) - int(true.max())))

    prior = Prior(num_examples=5, batches=blind_batches(NATURAL, (0.25,) * 4, 5))
    assert scored(Largest(), GUESS, TRUTH, prior) == Score(metric="largest", value=1, baseline=1)
    balanced, one = (guess.class_counts for guess in prior.guesses())
    assert sorted(balanced.tolist()) == [1, 1, 1, 2]
    assert sorted(one.tolist()) == [0, 0, 0, 5]


@pytest.mark.parametrize(("classes", "number"), [(1000, 4096), (10, 20_000), (10_000, 5000)])
def test_large_batches_and_many_classes_have_blind_counts_too(classes: int, number: int) -> None:
    prior = Prior(num_examples=number, batches=blind_batches(NATURAL, (1 / classes,) * classes, number))
    for metric in (LeAcc(), LnAcc(), IRec()):
        assert all(int(guess.class_counts.sum()) == number for guess in metric.blind(prior))
