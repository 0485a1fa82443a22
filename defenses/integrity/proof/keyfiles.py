"""Keys in files: 64 hex digits each."""

from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedsim.core.errors import FedsimError

LEDGER_SECRET, LEDGER_PUBLIC = "ledger.secret", "ledger.public"  # names of files, not secrets


def read_key(folder: Path, name: str) -> bytes:
    """Read a key of 32 bytes."""
    try:
        key = bytes.fromhex((folder / name).read_text(encoding="ascii").strip())
    except (OSError, ValueError) as error:
        words = f"{folder / name}: expected a key of 64 hex digits ({error}). Remedy: fedsim keys DIR."
        raise FedsimError(words) from error
    if len(key) != 32:
        raise FedsimError(f"{folder / name}: expected a key of 64 hex digits, got {2 * len(key)}")
    return key


def ledger_key(folder: Path) -> Ed25519PrivateKey:
    """Return what the verifier of a federation signs its ledger with, and draws its challenges from."""
    return Ed25519PrivateKey.from_private_bytes(read_key(folder, LEDGER_SECRET))
