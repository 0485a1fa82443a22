"""Clients prove every round that they trained: sealed traces, verified before their updates count.

Paper: Jia et al., Proof-of-Learning: Definitions and Practice (S&P 2021).
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from torch import Generator

from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Audit, Committed, Submission
from fedsim.core.randomness import generator
from fedsim.core.settings import number, one_of, optional, switch, whole, word
from fedsim.core.training import Batch, Claim
from fedsim.core.types import Verdict
from fedsim.defenses.integrity.proof.commitment import MerkleTree, leaves_of
from fedsim.defenses.integrity.proof.distances import LIMITED
from fedsim.defenses.integrity.proof.domain import DOMAINS
from fedsim.defenses.integrity.proof.expected import Expected, Thoroughness
from fedsim.defenses.integrity.proof.keyfiles import ledger_key
from fedsim.defenses.integrity.proof.proof import proof_of, to_bytes
from fedsim.defenses.integrity.proof.seal import content_digest, reading_key, seal, signing_key
from fedsim.defenses.integrity.proof.verify import verify


class ProofOfLearning(Audit):
    """Every update comes with a sealed trace; some of its steps are done again before it counts."""

    def __init__(
        self,
        *,
        every: int = 1,
        top: int = 1,
        random: int | None = None,
        detection: float = 0.95,
        delta: float = 1e-6,
        widen: float = 0.01,
        distance: str = "l2",
        domain: str = "uint8",
        pin_learning_rate: bool = True,
        exact: bool = True,
        machines: str = "any",
        strict: bool = True,
        rejected_weight: float = 0.0,
        exclude_after: int = 1,
        keep: bool = True,
        keys: str | None = None,
    ) -> None:
        """Set the checkpoint interval, how many steps are done again, and how far they may end up.

        top: largest updates of a round (Q); random: others (R); null: as many as detection asks for,
        the chance at which one false interval, wherever it is, must be found.
        delta: see `fedsim calibrate`; widen: how far it may grow where honest machines differ by more,
        as a share of the interval's length.
        domain: of the pixels that a batch may have: `uint8`, `box` ([0, 1]) or `real`.
        pin_learning_rate: refuse a trace of another learning rate, such as an endlessly small one.
        exact: a proof that names a machine like the verifier's must have its bits, whatever delta is;
        machines: `any`, or `same` to refuse proofs of machines that delta would have to be granted to.
        strict: clients commit to their data, its order is checked, copies, norms, losses and intervals
        too short to tell anything are refused; false: as in the paper.
        rejected_weight: of a rejected update in the mean; exclude_after: rejections after which a client
        is asked no more (0: it always is); keep: proofs and ledger in the run folder.
        keys: a folder of `fedsim keys`, whose ledger.secret signs the ledger and draws what is done again;
        null: both follow from the seed, which clients of a simulation could know.
        """
        number("audit.delta", delta, least=0)
        self.every = whole("audit.every", every)
        self.how = Thoroughness(
            top=whole("audit.top", top, 0),
            random=optional(whole, "audit.random", random, least=0),
            detection=number("audit.detection", detection, least=0, most=1),
            delta=delta,
            widen=number("audit.widen", widen, least=0, below=1),
            distance=one_of("audit.distance", distance, LIMITED),
            domain=one_of("audit.domain", domain, DOMAINS),
            exact=switch("audit.exact", exact),
            machines=one_of("audit.machines", machines, ("any", "same")),
            strict=switch("audit.strict", strict),
        )
        if top == 0 and (random == 0 or (random is None and detection == 0)):
            raise FedsimError("audit.top, audit.random: expected at least one step to do again, got 0")
        self.pin_learning_rate = switch("audit.pin_learning_rate", pin_learning_rate)
        self.rejected_weight = number("audit.rejected_weight", rejected_weight, least=0, most=1)
        self.exclude_after = whole("audit.exclude_after", exclude_after, 0)
        self.keep = switch("audit.keep", keep)
        self.commits = strict
        self._own = None if keys is None else ledger_key(Path(word("audit.keys", keys)))

    def commit(self, data: Batch) -> Committed | None:
        """Return the Merkle tree over a client's data."""
        return MerkleTree(leaves_of(data)) if self.commits else None

    def prove(self, claim: Claim, *, seed: int, round: int, client: int) -> bytes:
        """Seal the claimed trace with the client's key, for the server's eyes."""
        assert claim.trace is not None  # an audit has every client record its way
        proof = proof_of(claim.trace, subject=f"client {client}, round {round}", round=round, client=client)
        if claim.machine is not None:
            proof = replace(proof, machine=claim.machine)
        return seal(to_bytes(proof), signing_key(seed, client), reading_key(seed).public_key())

    def verifier(self, seed: int) -> tuple[str, Callable[[bytes], bytes]]:
        """Return the key that the ledger's head is signed with, and the signing."""
        own = signing_key(seed, "verifier") if self._own is None else self._own
        return own.public_key().public_bytes_raw().hex(), own.sign

    def examine(self, submission: Submission) -> Verdict:
        """Verify the proof that came with a reply."""
        round, client, seed = submission.round, submission.client, submission.seed
        expected = Expected(
            model=submission.model,
            task=submission.task,
            signer=signing_key(seed, client).public_key(),
            reader=reading_key(seed),
            round=round,
            client=client,
            parent=submission.sent,
            received=submission.received,
            kind=submission.kind,
            defended=submission.defended,
            learning_rate=submission.learning_rate if self.pin_learning_rate else None,
            steps=submission.steps,
            every=self.every,
            batch_size=submission.batch_size,
            nonce="" if self.commits else None,
            num_examples=submission.num_examples,
            commitment=submission.commitment if self.commits else None,
            order=submission.order if self.commits else None,
        )
        return verify(
            submission.proof,
            expected,
            self.how,
            lambda steps, _: submission.reveal(steps),
            self._challenge(submission),
        )

    def _challenge(self, submission: Submission) -> Generator:
        """Return what draws the steps that are done again."""
        names = ("challenge", submission.round, submission.client)
        if self._own is None:
            return generator(submission.seed, *names)
        # A key serves many runs: what was asked in one must not tell what will be asked in the next.
        secret = int.from_bytes(self._own.private_bytes_raw(), "big")
        return generator(secret, *names, content_digest(submission.proof, reading_key(submission.seed)))
