"""The contracts of clients, audits, forgeries and engines notice what breaks them."""

from dataclasses import replace

import pytest
import torch
from flwr.app import Context, Message

from fedsim.core.challenges import Challenge
from fedsim.core.interfaces import Behaviour, Forgery, Submission
from fedsim.core.training import Batch, Claim, LocalWork, honest
from fedsim.core.types import Verdict
from fedsim.defenses.integrity.proof.proof_of_learning import ProofOfLearning
from fedsim.flower.engines.engine import Apps
from fedsim.flower.engines.inline import Inline
from fedsim.testing import check_audit, check_client, check_engine, check_forgery


class Client(Behaviour):
    """Claims what is made of an honest claim."""

    def __init__(self, change) -> None:
        self.change = change

    def train(self, work: LocalWork) -> Claim:
        return self.change(work, honest(work))


def doubled(work: LocalWork, claim: Claim) -> Claim:
    return replace(claim, update={name: 2 * tensor for name, tensor in claim.update.items()})


def spoiling(work: LocalWork, claim: Claim) -> Claim:
    next(iter(work.sent.values())).zero_()
    return claim


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda work, claim: claim, "not an honest client's"),
        (lambda work, claim: replace(claim, batches=claim.batches[1:]), "batches of 4 steps, got 3"),
        (
            lambda work, claim: replace(claim, batches=claim.batches[::-1]),
            "batches that it would show",
        ),
        (lambda work, claim: replace(claim, update={}), "of the form of what was sent"),
        (doubled, "ends where the update leads"),
        (spoiling, "stay as they were"),
    ],
)
def test_a_client_that_breaks_the_contract_is_told_which(change, words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        check_client(Client(change))


class Lenient(ProofOfLearning):
    """Leaves one check out."""

    def __init__(self, **other: object) -> None:
        super().__init__()
        self.other = other

    def examine(self, submission: Submission) -> Verdict:
        verdict = super().examine(submission)
        changed = {name: value for name, value in self.other.items() if name != "forgives"}
        if verdict.check == self.other.get("forgives"):
            changed |= {"accepted": True}
        return replace(verdict, **changed)


@pytest.mark.parametrize(
    ("audit", "words"),
    [
        (Lenient(accepted=False, check="form"), "an honest client to be accepted, got form"),
        (Lenient(recomputed=0), "steps are done again"),
        (Lenient(forgives="reply"), "another client's update with its proof is rejected"),
        (Lenient(forgives="signature"), "another client's proof with its update is rejected"),
        (Lenient(forgives="step"), "one who did not train is rejected"),
        (Lenient(forgives="data"), "batches that are not in the proof is rejected"),
        (Lenient(forgives="form"), "no proof is rejected"),
        (Lenient(reason=""), "a check and a reason"),
    ],
)
def test_an_audit_that_lets_somebody_pass_is_told_whom(audit: ProofOfLearning, words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        check_audit(audit)


class Fake(Forgery):
    """Claims what is made of the batch."""

    pixels = "uint8"

    def __init__(self, change) -> None:
        self.change = change

    def forge(self, challenge: Challenge) -> Batch:
        return self.change(challenge)


def dimmed(asked: Challenge) -> Batch:
    return replace(asked.batch, images=asked.batch.images * 0.999)


def by_chance(asked: Challenge) -> Batch:
    """Other examples of other classes."""
    batch = asked.examples(asked.owned[: len(asked.batch.labels)])
    return replace(batch, labels=(batch.labels + 1) % 4)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda asked: asked.batch, "without the unwanted examples, got those at .0, 1, 2."),
        (lambda asked: replace(asked.batch, images=torch.rand_like(asked.batch.images)), "the same batch"),
        (dimmed, "in its domain .uint8."),
        (by_chance, "nearer than by chance"),
    ],
)
def test_a_forgery_that_breaks_the_contract_is_told_which(change, words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        check_forgery(Fake(change))


class Twice(Inline):
    """Asks clients again, who then remember more than they should."""

    def play(self, apps: Apps) -> None:
        def client(message: Message, context: Context) -> Message:
            apps.client(message, context)
            return apps.client(message, context)

        super().play(replace(apps, client=client))


def test_an_engine_that_asks_twice_is_noticed() -> None:
    with pytest.raises(AssertionError, match="the same bits in round"):
        check_engine(Twice())
