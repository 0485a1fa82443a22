"""The keys of a prover and of a verifier: in files, or of a seed for experiments."""

import hashlib
import os
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from fedsim.core.errors import FedsimError
from fedsim.defenses.integrity.proof.seal import reading_key, signing_key


def make_keys(folder: Path) -> None:
    """Write two fresh key pairs and the verifier's nonce; secrets are readable by their owner alone."""
    prover, verifier = Ed25519PrivateKey.generate(), X25519PrivateKey.generate()
    content = {
        "prover.secret": prover.private_bytes_raw(),
        "prover.public": prover.public_key().public_bytes_raw(),
        "verifier.secret": verifier.private_bytes_raw(),
        "verifier.public": verifier.public_key().public_bytes_raw(),
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
    secret, public = _key(folder, "prover.secret"), _key(folder, "verifier.public")
    return Ed25519PrivateKey.from_private_bytes(secret), X25519PublicKey.from_public_bytes(public)


def verifier_keys(folder: Path | None, seed: int) -> tuple[Ed25519PublicKey, X25519PrivateKey]:
    """Return whose signature a verifier expects, and what it reads with."""
    if folder is None:
        return signing_key(seed, "central").public_key(), reading_key(seed)
    public, secret = _key(folder, "prover.public"), _key(folder, "verifier.secret")
    return Ed25519PublicKey.from_public_bytes(public), X25519PrivateKey.from_private_bytes(secret)


def nonce_of(folder: Path | None, seed: int) -> bytes:
    """Return the verifier's nonce, which decides where a training begins; no folder: one of the seed."""
    if folder is None:
        return hashlib.sha256(f"fedsim nonce/{seed}".encode()).digest()
    return _key(folder, "nonce.public")


def _key(folder: Path, name: str) -> bytes:
    try:
        key = bytes.fromhex((folder / name).read_text(encoding="ascii").strip())
    except (OSError, ValueError) as error:
        words = f"{folder / name}: expected a key of 64 hex digits ({error}). Remedy: fedsim keys DIR."
        raise FedsimError(words) from error
    if len(key) != 32:
        raise FedsimError(f"{folder / name}: expected a key of 64 hex digits, got {2 * len(key)}")
    return key
