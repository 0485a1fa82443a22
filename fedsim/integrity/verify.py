"""Is the proof of a training outside of a federation true? Batches go by their indices in a data set."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from fedsim.core.errors import FedsimError
from fedsim.core.training import Batch, weights_of
from fedsim.core.types import Verdict, Weights
from fedsim.defenses.integrity.proof.checkpoints import Malformed
from fedsim.defenses.integrity.proof.expected import Expected, Reveal, Work
from fedsim.defenses.integrity.proof.proof import Proof, from_bytes
from fedsim.defenses.integrity.proof.proof_of_learning import ProofOfLearning
from fedsim.defenses.integrity.proof.seal import is_sealed_with, unseal
from fedsim.defenses.integrity.proof.verify import verify
from fedsim.integrity.binding import bound, commitment_to
from fedsim.integrity.keys import nonce_of, verifier_keys
from fedsim.integrity.prove import calibration_for
from fedsim.integrity.training import CentralTraining, batch_at, central_indices

LARGEST = 16 * 2**30  # bytes of a proof that is read at all


class ProofFile(NamedTuple):
    """A proof's file as it was when it was read: once, so that nobody can put another in its place."""

    path: Path
    sealed: bytes


class Link(NamedTuple):
    """A proof of a chain, and the training that it must be of."""

    file: ProofFile
    training: CentralTraining


def read_proof(path: Path) -> ProofFile:
    """Read a proof's file, if it can be judged: there, and not endless."""
    if not path.is_file():
        raise FedsimError(f"{path}: expected a file that `fedsim prove` wrote, got none")
    if (size := path.stat().st_size) > LARGEST:
        raise FedsimError(f"{path}: {size} bytes are more than the {LARGEST} that are read at all")
    return ProofFile(path, path.read_bytes())


def verify_file(
    file: ProofFile,
    training: CentralTraining,
    audit: ProofOfLearning,
    challenge: torch.Generator,
    *,
    model: Weights | None = None,
    parents: Sequence[Link] = (),
    works: list[Work] | None = None,
) -> Verdict:
    """Judge a file by what the verifier has: its key, the prover's public key, the model and the data.

    model: the weights that the proof must end with; parents: the proof of the weights that it begins at,
    that of the weights that this one begins at, and so on: all must hold; challenge: must be unknown to the
    prover; works: is filled with what was found of each, from the first parent on. Raises where there is
    nothing to judge by: no keys.
    """
    before, began, work = None, None, Work()
    works = [] if works is None else works
    if parents:
        parent, *further = parents
        # A draw of its own: verifiers that share all proofs must go on alike, whatever they looked at here.
        drawn = torch.Generator().manual_seed(int(torch.randint(2**62, (), generator=challenge)))
        before = verify_file(parent.file, parent.training, audit, drawn, parents=further, works=works)
        if not before.accepted:
            return replace(before, check="parent", reason=f"its parent: {before.check}: {before.reason}")
        began = _unsealed(parent).trace.checkpoints[-1]
    check_seeds_keys(file, training.keys, training.seed)
    works.append(work)
    verdict = judged(file.sealed, training, audit, challenge, parent=began, final=model, work=work)
    if before is not None:  # one false interval in any of them
        chain = 1 - (1 - (verdict.unseen or 0.0)) * (1 - (before.unseen or 0.0))
        verdict = replace(verdict, unseen=chain)
    return verdict


def _unsealed(link: Link) -> Proof:
    """Return a proof that was verified before."""
    keys = verifier_keys(link.training.keys, link.training.seed)
    return from_bytes(unseal(link.file.sealed, *keys).payload)


def judged(
    sealed: bytes,
    training: CentralTraining,
    audit: ProofOfLearning,
    challenge: torch.Generator,
    reveal: Reveal | None = None,
    *,
    parent: Weights | None = None,
    final: Weights | None = None,
    work: Work | None = None,
) -> Verdict:
    """Judge a sealed proof; reveal: asks the prover for its data (None: it is the verifier's own).

    parent: where it must begin, in place of a random initialisation; final: the model that it must end with;
    work: as in verify.
    With audit.strict, what the training began with and the order of its data must follow from the nonce.
    """
    signer, reader = verifier_keys(training.keys, training.seed)
    expected = Expected(
        model=training.fresh(0),
        task=training.task,
        signer=signer,
        reader=reader,
        fresh=lambda number: weights_of(training.fresh(number + 1)),
        learning_rate=training.learning_rate if audit.pin_learning_rate else None,
        steps=training.steps,
        every=audit.every,
        batch_size=min(training.batch_size, len(training.train.labels)),
        precision=training.precision,
        parent=parent,
        final=final,
        calibration=calibration_for(training, audit.every, audit.how.distance),
    )
    if audit.how.strict:
        data = commitment_to(training.train)
        nonce = nonce_of(training.keys, training.seed)
        own = bound(training, signer.public_bytes_raw(), nonce, data.root)
        expected = replace(
            expected,
            start=None if parent is not None else weights_of(own.fresh(0)),
            nonce=nonce.hex(),
            commitment=data,
            order=[tuple(central_indices(own, step).tolist()) for step in range(training.steps)],
            owns_data=reveal is None,
        )
    how = replace(audit.how, epoch=training.epoch)
    if expected.calibration is not None:
        how = replace(how, calibrated=expected.calibration.delta)
    return verify(sealed, expected, how, reveal or batches_at(training), challenge, work)


def check_seeds_keys(file: ProofFile, keys: Path | None, seed: int) -> None:
    """Complain of a seal of other keys than the seed's, where none were named: that says nothing."""
    if keys is not None:
        return
    try:
        own = is_sealed_with(file.sealed, *verifier_keys(None, seed))
    except Malformed:
        return  # a verdict
    if not own:
        raise FedsimError(
            f"{file.path}: could not be judged: expected a seal of the keys that follow from seed={seed}, "
            "got one of other keys, and none were named. Remedy: proof.keys=DIR, with the folder of its keys."
        )


def batches_at(training: CentralTraining) -> Reveal:
    """Return what shows a verifier the batches that a proof names."""
    total = len(training.train.labels)

    def reveal(steps: Sequence[int], indices: Sequence[tuple[int, ...]]) -> list[Batch]:
        found = list[Batch]()
        for step in indices:
            if not step or max(step) >= total:
                raise FedsimError(f"the proof names an example that the data of {total} does not have")
            if len(set(step)) < len(step):
                raise FedsimError("the proof names an example twice in a step")
            found.append(batch_at(training, torch.tensor(step)))
        return found

    return reveal
