"""The verifier of proofs at its calibrated delta: honest work on other machines passes, cheats do not.

LeNet-5 on MNIST, one largest and one random step. Jia et al. (S&P 2021); benchmarks/proof.py has the costs.
"""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from fedsim.attacks.integrity.forging.forger import Forger
from fedsim.attacks.integrity.forging.greedy import Greedy
from fedsim.attacks.integrity.spoofing.blindfold import Blindfold
from fedsim.attacks.integrity.spoofing.concatenation import Concatenation
from fedsim.attacks.integrity.spoofing.directed_retraining import DirectedRetraining
from fedsim.attacks.integrity.spoofing.free_rider import FreeRider
from fedsim.attacks.integrity.spoofing.inverse_gradient import InverseGradient, invert_step
from fedsim.attacks.integrity.spoofing.wrong_data import WrongData
from fedsim.core.interfaces import Behaviour, Submission
from fedsim.core.randomness import generator
from fedsim.core.training import Batch, LocalWork, honest, sgd_step, weights_of
from fedsim.core.types import Task, Verdict
from fedsim.data.mnist_small import mnist_small
from fedsim.defenses.integrity.proof.distances import distance
from fedsim.defenses.integrity.proof.proof_of_learning import ProofOfLearning
from fedsim.models.lenet5 import lenet5

DELTA = 4e-7  # fedsim calibrate: ten times the largest error over threads, order, kernels (3.3e-8 to 4e-8)
RATE = 0.05
TASK = Task(input_shape=(1, 28, 28), num_classes=10, mean=(0.5,), std=(0.5,))
STEPS = 2  # of an honest proof: both are done again
LONG = 6  # of a cheat's: a third is


@pytest.fixture(scope="module")
def data():
    return mnist_small()


def work(data, number: int, steps: int = STEPS) -> LocalWork:
    torch.manual_seed(number // 20)  # twenty proofs a model
    model = lenet5(data.task).eval()
    owned = torch.arange(len(data.train.labels))

    def indices(step: int) -> torch.Tensor:
        return torch.randperm(len(owned), generator=generator(number, "bars", step))[:32]

    return LocalWork(
        round=1,
        client=number,
        model=model,
        sent=weights_of(model),
        steps=steps,
        learning_rate=RATE,
        every=1,
        indices=indices,
        batch=lambda chosen: Batch(images=data.train.batch(chosen), labels=data.train.labels[chosen]),
        task=TASK,
        owned=owned,
        generator=generator(number, "cheat"),
    )


def judged(behaviour: Behaviour, asked: LocalWork, random: int = 1) -> Verdict:
    audit = ProofOfLearning(delta=DELTA, random=random, keep=False)
    claim = replace(behaviour.train(asked), machine="another machine")  # whose bits nobody here computes
    with threads(2):  # nor does the verifier know how many threads it had
        return audit.examine(
            Submission(
                round=asked.round,
                client=asked.client,
                proof=audit.prove(claim, seed=0, round=asked.round, client=asked.client),
                model=asked.model,
                sent=asked.sent,
                received=claim.update,
                num_examples=asked.steps * 32,
                task=TASK,
                batch_size=32,
                steps=asked.steps,
                learning_rate=asked.learning_rate,
                reveal=lambda steps: [claim.batches[step] for step in steps],
                seed=0,
            )
        )


@contextmanager
def threads(number: int) -> Iterator[None]:
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(1)


@pytest.mark.slow
def test_no_honest_proof_of_two_hundred_is_rejected_on_another_number_of_threads(data) -> None:
    verdicts = [judged(Behaviour(), work(data, number)) for number in range(200)]
    assert all(verdict.accepted for verdict in verdicts)
    assert max(verdict.distance for verdict in verdicts) < DELTA / 4


def test_batches_in_another_order_stay_within_delta(data) -> None:
    for number in range(0, 200, 20):
        asked = work(data, number)
        trace = honest(asked).trace
        for step in range(STEPS):
            batch = asked.batch(asked.indices(step))
            order = torch.randperm(32, generator=generator(number, step))
            asked.model.load_state_dict({**asked.model.state_dict(), **trace.checkpoints[step]})
            sgd_step(asked.model, Batch(images=batch.images[order], labels=batch.labels[order]), RATE)
            assert distance("l2", weights_of(asked.model), trace.checkpoints[step + 1]) < DELTA / 4


@pytest.mark.slow
@pytest.mark.parametrize(
    "behaviour",
    [
        FreeRider(),
        FreeRider(noise=0.0),
        Concatenation(),
        WrongData(),
        Forger(forgery=Greedy(candidates=3)),
        Forger(forgery=Greedy(candidates=3), fraction=0.0),  # one example of the batch
        DirectedRetraining(),
        DirectedRetraining(pull=1e-5),
        Blindfold(),
    ],
    ids=lambda behaviour: type(behaviour).__name__,
)
def test_cheats_are_caught_by_the_largest_step_and_one_at_random(data, behaviour) -> None:
    verdicts = [judged(behaviour, work(data, number, LONG)) for number in range(15)]
    assert [verdict.accepted for verdict in verdicts] == [False] * 15


def test_a_blindfold_passes_where_only_the_largest_step_is_done_again(data) -> None:
    verdicts = [judged(Blindfold(), work(data, number, LONG), random=0) for number in range(10)]
    assert sum(not verdict.accepted for verdict in verdicts) == 0


def test_a_proof_made_backwards_has_valid_steps_and_a_wrong_beginning(data) -> None:
    slow = dataclasses.replace(work(data, 3), learning_rate=0.001)  # faster, no solver converges
    spoof = InverseGradient(away=0.01)
    claim = spoof.train(slow)
    verdict = judged(spoof, slow)
    assert (verdict.accepted, verdict.check) == (False, "initial")
    gaps = []
    for step, batch in enumerate(claim.batches):
        slow.model.load_state_dict({**slow.model.state_dict(), **claim.trace.checkpoints[step]})
        sgd_step(slow.model, batch, 0.001)
        gaps.append(distance("l2", weights_of(slow.model), claim.trace.checkpoints[step + 1]))
    assert max(gaps) < DELTA  # float32 rounds what was solved in float64


@pytest.mark.parametrize("solver", ["picard", "newton_krylov"])
def test_a_step_is_inverted_at_several_times_its_cost(data, solver: str) -> None:
    asked = work(data, 5)
    batch = asked.batch(asked.indices(0))
    after = {name: tensor.clone() for name, tensor in asked.sent.items()}
    found = invert_step(asked.model, after, batch, 0.001, solver=solver)
    assert found.error < 1e-6
    assert found.calls >= 3
