"""Proofs of trainings outside of a federation: keys in files, batches by their indices in a data set."""

import os
from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from torch import Tensor

from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import CentralTraining
from fedsim.core.randomness import generator
from fedsim.core.training import Batch, Trace, batch_digest, sgd_step, weights_of
from fedsim.core.types import Verdict, Weights
from fedsim.defenses.integrity.proof.proof import proof_of, to_bytes
from fedsim.defenses.integrity.proof.seal import reading_key, seal, signing_key
from fedsim.defenses.integrity.proof.verify import Expected, Reveal, Thoroughness, verify
from fedsim.storage.folder import Storage

FILE = "training.proof"
LARGEST = 16 * 2**30  # bytes of a proof that is read at all
KEYS = ("prover.secret", "prover.public", "verifier.secret", "verifier.public")


def prove_training(training: CentralTraining, every: int) -> Path:
    """Train from a random initialisation and write the sealed proof of it."""
    path = training.folder / FILE
    if path.exists():
        raise FedsimError(f"{path} is there already. Remedy: another hydra.run.dir.")
    trace = train_centrally(training, every)
    if training.precision == "float16":
        halved = [{n: t.half().float() for n, t in weights.items()} for weights in trace.checkpoints]
        trace = replace(trace, checkpoints=tuple(halved))
    signer, reader = _prover_keys(training)
    subject = f"{training.steps} steps on batches of {training.batch_size}"
    proof = replace(proof_of(trace, subject=subject, initial="random"), precision=training.precision)
    Storage(training.folder).write(FILE, seal(to_bytes(proof), signer, reader))
    return path


def verify_file(
    path: Path, training: CentralTraining, how: Thoroughness, learning_rate: float | None, every: int
) -> Verdict:
    """Judge a file by what the verifier has: its key, the prover's public key, the model and the data."""
    if not path.is_file():
        raise FedsimError(f"{path}: expected a file that `fedsim prove` wrote, got none")
    if (size := path.stat().st_size) > LARGEST:
        raise FedsimError(f"{path}: {size} bytes are more than the {LARGEST} that are read at all")
    signer, reader = _verifier_keys(training)
    expected = Expected(
        model=training.fresh(0),
        task=training.task,
        signer=signer,
        reader=reader,
        fresh=lambda number: weights_of(training.fresh(number + 1)),
        learning_rate=learning_rate,
        steps=training.steps,
        every=every,
        batch_size=min(training.batch_size, len(training.train.labels)),
    )
    epoch = max(1, len(training.train.labels) // training.batch_size)
    how = replace(how, epoch=epoch)
    challenge = torch.Generator()
    challenge.seed()  # of the machine's own chance: nobody can know it beforehand
    return verify(path.read_bytes(), expected, how, batches_at(training), challenge)


def train_centrally(training: CentralTraining, every: int, number: int = 0) -> Trace:
    """Train the `number`-th model on the `number`-th order of batches, and record the way."""
    model = training.fresh(number)
    checkpoints, digests, indices = [weights_of(model)], list[Future[str]](), list[tuple[int, ...]]()
    with ThreadPoolExecutor(1) as beside:  # a batch is digested while the next step is computed
        for step in range(training.steps):
            chosen = central_indices(training, step, number)
            batch = batch_at(training, chosen)
            digests.append(beside.submit(batch_digest, batch))
            sgd_step(model, batch, training.learning_rate)
            indices.append(tuple(chosen.tolist()))
            if (step + 1) % every == 0 or step + 1 == training.steps:
                checkpoints.append(weights_of(model))
    return Trace(
        checkpoints=tuple(checkpoints),
        every=every,
        learning_rate=training.learning_rate,
        indices=tuple(indices),
        digests=tuple(digest.result() for digest in digests),
    )


def weights_before(training: CentralTraining, steps: Collection[int]) -> dict[int, Weights]:
    """Train up to the last of these steps, and return the weights before each of them alone."""
    model, found = training.fresh(0), dict[int, Weights]()
    for step in range(max(steps) + 1):
        if step in steps:
            found[step] = weights_of(model)
        if step < max(steps):
            sgd_step(model, batch_at(training, central_indices(training, step)), training.learning_rate)
    return found


def central_indices(training: CentralTraining, step: int, number: int = 0) -> Tensor:
    """Return a step's examples: epochs in random order."""
    total = len(training.train.labels)
    size = min(training.batch_size, total)
    epoch, place = divmod(step, total // size)
    order = torch.randperm(total, generator=generator(training.seed, "central", number, epoch))
    return order[place * size : (place + 1) * size]


def batch_at(training: CentralTraining, indices: Tensor) -> Batch:
    """Return the examples at these indices."""
    return Batch(images=training.train.batch(indices), labels=training.train.labels[indices])


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


def make_keys(folder: Path) -> None:
    """Write two fresh key pairs; secrets are readable by their owner alone."""
    prover, verifier = Ed25519PrivateKey.generate(), X25519PrivateKey.generate()
    content = {
        "prover.secret": prover.private_bytes_raw(),
        "prover.public": prover.public_key().public_bytes_raw(),
        "verifier.secret": verifier.private_bytes_raw(),
        "verifier.public": verifier.public_key().public_bytes_raw(),
    }
    if folder.exists() and not folder.is_dir():
        raise FedsimError(f"{folder}: expected a folder, got a file")
    folder.mkdir(parents=True, exist_ok=True)
    if taken := [name for name in content if (folder / name).exists()]:
        raise FedsimError(
            f"{folder / taken[0]} is there already. Remedy: another folder: keys are never replaced."
        )
    for name, key in content.items():
        mode = 0o600 if name.endswith("secret") else 0o644
        with os.fdopen(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
            file.write(key.hex() + "\n")


def _prover_keys(training: CentralTraining) -> tuple[Ed25519PrivateKey, X25519PublicKey]:
    if training.keys is None:
        return signing_key(training.seed, "central"), reading_key(training.seed).public_key()
    secret, public = _key(training.keys, "prover.secret"), _key(training.keys, "verifier.public")
    return Ed25519PrivateKey.from_private_bytes(secret), X25519PublicKey.from_public_bytes(public)


def _verifier_keys(training: CentralTraining) -> tuple[Ed25519PublicKey, X25519PrivateKey]:
    if training.keys is None:
        return signing_key(training.seed, "central").public_key(), reading_key(training.seed)
    public, secret = _key(training.keys, "prover.public"), _key(training.keys, "verifier.secret")
    return Ed25519PublicKey.from_public_bytes(public), X25519PrivateKey.from_private_bytes(secret)


def _key(folder: Path, name: str) -> bytes:
    try:
        key = bytes.fromhex((folder / name).read_text(encoding="ascii").strip())
    except (OSError, ValueError) as error:
        words = f"{folder / name}: expected a key of 64 hex digits ({error}). Remedy: fedsim keys DIR."
        raise FedsimError(words) from error
    if len(key) != 32:
        raise FedsimError(f"{folder / name}: expected a key of 64 hex digits, got {2 * len(key)}")
    return key
