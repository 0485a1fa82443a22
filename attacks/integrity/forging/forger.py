"""A client that trains on its data and claims other data for its update.

What it gains: a proof of training in which its examples do not appear.
Paper: Thudi et al., On the Necessity of Auditable Algorithmic Definitions for Machine Unlearning (USENIX
    Security 2022); the forgery is a choice of its own (`forgery`).
Assumes: what the forgery assumes.
Caught by: a recomputed step, or data outside of the domain, depending on the forgery.
"""

from dataclasses import replace

from fedsim.attacks.integrity.forging.greedy import Greedy
from fedsim.attacks.integrity.spoofing.fabricate import claimed
from fedsim.core.challenges import Challenge, challenge_on
from fedsim.core.interfaces import Behaviour, Forgery
from fedsim.core.settings import number
from fedsim.core.training import Batch, Claim, LocalWork, load_weights, sgd_step, weights_of

LEAST = 1e-9  # of a batch: one example at least


class Forger(Behaviour):
    """Trains as asked, a step at a time, and claims a forged batch for each."""

    def __init__(self, *, forgery: Forgery | None = None, fraction: float = 1.0) -> None:
        """Set how to forge (null: greedy search), and which share of each batch must not appear.

        At least one example is replaced.
        """
        self.forgery = forgery or Greedy()
        self.fraction = number("client.forger.fraction", fraction, least=0, most=1)

    def train(self, work: LocalWork) -> Claim:
        """Take each step on what the forgery composes, and claim what it forges."""
        load_weights(work.model, work.sent)
        every_step, forged = [weights_of(work.model)], list[Batch]()
        for step in range(work.steps):
            challenge = self._challenge(work, step)
            used = self.forgery.compose(challenge)
            forged.append(self.forgery.forge(replace(challenge, batch=used)))
            sgd_step(work.model, used, work.learning_rate)
            every_step.append(weights_of(work.model))
        return claimed(work, every_step, forged)

    def _challenge(self, work: LocalWork, step: int) -> Challenge:
        return challenge_on(
            work.indices(step),
            model=work.model,
            unwanted=max(self.fraction, LEAST),
            task=work.task,
            owned=work.owned,
            examples=work.batch,
            chance=work.generator,
            learning_rate=work.learning_rate,
        )
