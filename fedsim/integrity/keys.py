"""The keys of a prover and of a verifier: in files, or of a seed for experiments."""

import hashlib
import os
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from fedsim.core.errors import FedsimError
from fedsim.defenses.integrity.proof.keyfiles import LEDGER_PUBLIC, LEDGER_SECRET, read_key
from fedsim.defenses.integrity.proof.seal import reading_key, signing_key


def make_keys(folder: Path) -> None:
    """Write fresh key pairs of a prover, of a verifier and of its ledgers, and the verifier's nonce.

    Secrets are readable by their owner alone.
    """
    prover, verifier = Ed25519PrivateKey.generate(), X25519PrivateKey.generate()
    ledger = Ed25519PrivateKey.generate()
    content = {
        "prover.secret": prover.private_bytes_raw(),
        "prover.public": prover.public_key().public_bytes_raw(),
        "verifier.secret": verifier.private_bytes_raw(),
        "verifier.public": verifier.public_key().public_bytes_raw(),
        LEDGER_SECRET: ledger.private_bytes_raw(),
        LEDGER_PUBLIC: ledger.public_key().public_bytes_raw(),
        "nonce.public": os.urandom(32),
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


def prover_keys(folder: Path | None, seed: int) -> tuple[Ed25519PrivateKey, X25519PublicKey]:
    """Return what a prover signs with, and whom it writes to; no folder: keys that follow from a seed."""
    if folder is None:
        return signing_key(seed, "central"), reading_key(seed).public_key()
    secret, public = read_key(folder, "prover.secret"), read_key(folder, "verifier.public")
    return Ed25519PrivateKey.from_private_bytes(secret), X25519PublicKey.from_public_bytes(public)


def verifier_keys(folder: Path | None, seed: int) -> tuple[Ed25519PublicKey, X25519PrivateKey]:
    """Return whose signature a verifier expects, and what it reads with."""
    if folder is None:
        return signing_key(seed, "central").public_key(), reading_key(seed)
    public, secret = read_key(folder, "prover.public"), read_key(folder, "verifier.secret")
    return Ed25519PublicKey.from_public_bytes(public), X25519PrivateKey.from_private_bytes(secret)


def nonce_of(folder: Path | None, seed: int) -> bytes:
    """Return the verifier's nonce, which decides where a training begins; no folder: one of the seed."""
    if folder is None:
        return hashlib.sha256(f"fedsim nonce/{seed}".encode()).digest()
    return read_key(folder, "nonce.public")
