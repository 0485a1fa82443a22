"""Clients prove every round that they trained: sealed traces, verified before their updates count.

Paper: Jia et al., Proof-of-Learning: Definitions and Practice (S&P 2021).
"""

from importlib.metadata import version
from pathlib import Path

import torch

from defenses.integrity.proof import ledger
from defenses.integrity.proof.distances import DISTANCES
from defenses.integrity.proof.proof import Proof, to_bytes
from defenses.integrity.proof.seal import reading_key, seal, signing_key
from defenses.integrity.proof.verify import Expected, Thoroughness, verify
from fedsim.errors import FedsimError
from fedsim.interfaces import Audit, Submission
from fedsim.randomness import generator
from fedsim.training import Claim, Trace, tensors_digest
from fedsim.types import Verdict

LEDGER = "ledger.jsonl"
LIBRARIES = ("torch", "numpy", "fedsim")


class ProofOfLearning(Audit):
    """Every update comes with a sealed trace; some of its steps are done again before it counts."""

    def __init__(
        self,
        *,
        every: int = 1,
        top: int = 1,
        random: int = 1,
        delta: float = 1e-6,
        distance: str = "l2",
        pin_learning_rate: bool = True,
        rejected_weight: float = 0.0,
        keep: bool = True,
    ) -> None:
        """Set the checkpoint interval, how many steps are done again, and how far they may end up.

        top: largest updates of a round (Q); random: others (R); delta: see `fedsim calibrate`.
        pin_learning_rate: refuse a trace of another learning rate, such as an endlessly small one.
        rejected_weight: of a rejected update in the mean; keep: proofs and ledger in the run folder.
        """
        for name, value, least in (("every", every, 1), ("top", top, 0), ("random", random, 0)):
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise FedsimError(f"audit.{name}: expected a whole number of at least {least}, got {value!r}")
        if not delta > 0:
            raise FedsimError(f"audit.delta: expected a positive number, got {delta}")
        if distance not in DISTANCES:
            raise FedsimError(f"audit.distance: expected one of {', '.join(DISTANCES)}, got {distance!r}")
        if not 0 <= rejected_weight <= 1:
            raise FedsimError(f"audit.rejected_weight: expected a share in [0, 1], got {rejected_weight}")
        self.every = every
        self.how = Thoroughness(top=top, random=random, delta=delta, distance=distance)
        self.pin_learning_rate = pin_learning_rate
        self.rejected_weight = rejected_weight
        self.keep = keep

    def prove(self, claim: Claim, *, seed: int, round: int, client: int) -> bytes:
        """Seal the claimed trace with the client's key, for the server's eyes."""
        proof = proof_of(claim.trace, subject=f"client {client}, round {round}", round=round, client=client)
        return seal(to_bytes(proof), signing_key(seed, client), reading_key(seed).public_key())

    def examine(self, submission: Submission) -> Verdict:
        """Enter the proof in the ledger, then verify it."""
        round, client, seed = submission.round, submission.client, submission.seed
        if self.keep:
            self._keep(submission)
        expected = Expected(
            model=submission.model,
            signer=signing_key(seed, client).public_key(),
            reader=reading_key(seed),
            round=round,
            client=client,
            parent=submission.sent,
            received=submission.received,
            learning_rate=submission.learning_rate if self.pin_learning_rate else None,
            steps=submission.steps,
        )
        challenge = generator(seed, "challenge", round, client)  # the clients do not know the server's seed
        return verify(submission.proof, expected, self.how, submission.reveal, challenge)

    def _keep(self, submission: Submission) -> None:
        folder = submission.folder / "proofs"
        ledger.append(folder / LEDGER, submission.proof, round=submission.round, client=submission.client)
        _write(folder / f"round_{submission.round}.client_{submission.client}.proof", submission.proof)


def proof_of(
    trace: Trace, *, subject: str, round: int = 0, client: int = 0, initial: str = "parent"
) -> Proof:
    """Return the proof that a trace makes, on this machine."""
    return Proof(
        subject=subject,
        round=round,
        client=client,
        initial="random" if initial == "random" else "parent",
        parent=tensors_digest(trace.checkpoints[0]),
        trace=trace,
        threads=torch.get_num_threads(),
        libraries={name: version(name) for name in LIBRARIES},
    )


def _write(path: Path, content: bytes) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(content)
    temporary.replace(path)
