"""Is the proof of a training outside of a federation true? Batches go by their indices in a data set."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from fedsim.core.errors import FedsimError
from fedsim.core.training import Batch, weights_of
from fedsim.core.types import Verdict, Weights
from fedsim.defenses.integrity.proof.checkpoints import Malformed
from fedsim.defenses.integrity.proof.expected import Expected, Reveal
from fedsim.defenses.integrity.proof.proof import Proof, from_bytes
from fedsim.defenses.integrity.proof.proof_of_learning import ProofOfLearning
from fedsim.defenses.integrity.proof.seal import is_sealed_with, unseal
from fedsim.defenses.integrity.proof.verify import verify
from fedsim.integrity.binding import bound, commitment_to
from fedsim.integrity.keys import nonce_of, verifier_keys
from fedsim.integrity.models import read_model
from fedsim.integrity.prove import calibration_for
from fedsim.integrity.training import CentralTraining, batch_at, central_indices

LARGEST = 16 * 2**30  # bytes of a proof that is read at all


def verify_file(
    path: Path,
    training: CentralTraining,
    audit: ProofOfLearning,
    challenge: torch.Generator,
    *,
    model: Path | None = None,
    parent: Path | None = None,
) -> Verdict:
    """Judge a file by what the verifier has: its key, the prover's public key, the model and the data.

    model: a file of weights that the proof must end with; parent: the proof of the weights that it begins at,
    which must hold first; challenge: must be unknown to the prover. Raises where there is nothing to judge
    by: no such file, no keys.
    """
    began = None
    if parent is not None:
        # A draw of its own: verifiers that share both proofs must go on alike, whatever they looked at here.
        drawn = int(torch.randint(2**62, (), generator=challenge))
        before = verify_file(parent, training, audit, torch.Generator().manual_seed(drawn))
        if not before.accepted:
            return replace(before, check="parent", reason=f"its parent: {before.check}: {before.reason}")
        began = unsealed(parent, training).trace.checkpoints[-1]
    sealed = read_sealed(path, training.keys, training.seed)
    final = None if model is None else read_model(model)
    verdict = judged(sealed, training, audit, challenge, parent=began, final=final)
    if parent is not None:  # one false interval in either of the two
        chain = 1 - (1 - (verdict.unseen or 0.0)) * (1 - (before.unseen or 0.0))
        verdict = replace(verdict, unseen=chain)
    return verdict


def read_sealed(path: Path, keys: Path | None, seed: int) -> bytes:
    """Read a proof's file, if it can be judged: there, not endless, and by keys that were named."""
    if not path.is_file():
        raise FedsimError(f"{path}: expected a file that `fedsim prove` wrote, got none")
    if (size := path.stat().st_size) > LARGEST:
        raise FedsimError(f"{path}: {size} bytes are more than the {LARGEST} that are read at all")
    sealed = path.read_bytes()
    if keys is None:
        _check_seeds_keys(path, sealed, seed)
    return sealed


def unsealed(path: Path, training: CentralTraining) -> Proof:
    """Return the proof in a file that was verified before."""
    return from_bytes(unseal(path.read_bytes(), *verifier_keys(training.keys, training.seed)).payload)


def judged(
    sealed: bytes,
    training: CentralTraining,
    audit: ProofOfLearning,
    challenge: torch.Generator,
    reveal: Reveal | None = None,
    *,
    parent: Weights | None = None,
    final: Weights | None = None,
) -> Verdict:
    """Judge a sealed proof; reveal: asks the prover for its data (None: it is the verifier's own).

    parent: where it must begin, in place of a random initialisation; final: the model that it must end with.
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
            commitment=data,
            order=[tuple(central_indices(own, step).tolist()) for step in range(training.steps)],
            owns_data=reveal is None,
        )
    how = replace(audit.how, epoch=training.epoch)
    if expected.calibration is not None:
        how = replace(how, delta=expected.calibration.delta, widen=0.0)
    return verify(sealed, expected, how, reveal or batches_at(training), challenge)


def _check_seeds_keys(path: Path, sealed: bytes, seed: int) -> None:
    """Complain of a seal of other keys than the seed's: as none were named, it says nothing of the proof."""
    try:
        own = is_sealed_with(sealed, *verifier_keys(None, seed))
    except Malformed:
        return  # a verdict
    if not own:
        raise FedsimError(
            f"{path}: could not be judged: expected a seal of the keys that follow from seed={seed}, got one "
            "of other keys, and none were named. Remedy: proof.keys=DIR, with the folder of its keys."
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
