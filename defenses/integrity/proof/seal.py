"""Proofs that only the verifier can read and only the prover can have written.

X25519 with a fresh key agrees on a key with the verifier, HKDF-SHA256 stretches it, AES-256-GCM encrypts,
Ed25519 signs the SHA-256 of all of it. Package: cryptography.
"""

import hashlib
import os
import time
from dataclasses import dataclass
from typing import Any

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedsim.core.errors import FedsimError
from fedsim.defenses.integrity.proof.proof import Malformed, canonical, read_header

MAGIC = b"FEDSIMPL"
VERSION = 1
TAG, SIGNATURE = 16, 64
_KEYS = {
    "version": int,
    "signer": str,
    "reader": str,
    "ephemeral": str,
    "nonce": str,
    "time": int,
    "length": int,
}


class BadSignature(FedsimError):
    """Not written by who it should be."""


class Unreadable(FedsimError):
    """Not written for this reader, or changed on the way."""


@dataclass(frozen=True)
class Sealed:
    """A proof's bytes out of their envelope."""

    payload: bytes
    time: int  # seconds since 1970, by the prover's clock


def signing_key(*secret: str | int) -> Ed25519PrivateKey:
    """Return a client's key of a simulation, from its seed."""
    return Ed25519PrivateKey.from_private_bytes(_derived("signing", *secret))


def reading_key(*secret: str | int) -> X25519PrivateKey:
    """Return the verifier's key of a simulation, from its seed."""
    return X25519PrivateKey.from_private_bytes(_derived("reading", *secret))


def seal(payload: bytes, signer: Ed25519PrivateKey, reader: X25519PublicKey, now: int | None = None) -> bytes:
    """Encrypt to the reader and sign."""
    ephemeral, nonce = X25519PrivateKey.generate(), os.urandom(12)
    header = canonical(
        {
            "version": VERSION,
            "signer": signer.public_key().public_bytes_raw().hex(),
            "reader": reader.public_bytes_raw().hex(),
            "ephemeral": ephemeral.public_key().public_bytes_raw().hex(),
            "nonce": nonce.hex(),
            "time": int(time.time()) if now is None else now,
            "length": len(payload),
        }
    )
    front = MAGIC + len(header).to_bytes(4, "little") + header
    key = _shared_key(ephemeral.exchange(reader), front)
    body = front + AESGCM(key).encrypt(nonce, payload, front)
    return body + signer.sign(hashlib.sha256(body).digest())  # several times faster than signing all of it


def unseal(content: bytes, signer: Ed25519PublicKey, reader: X25519PrivateKey) -> Sealed:
    """Check form, signature and recipient, and decrypt; every failure says which of them it was."""
    header, end = _read_front(content)
    body, signature = memoryview(content)[:-SIGNATURE], content[-SIGNATURE:]
    if header["signer"] != signer.public_bytes_raw().hex():
        raise BadSignature("signed by another key than the prover's")
    try:
        signer.verify(signature, hashlib.sha256(body).digest())
    except InvalidSignature as error:
        raise BadSignature("the signature does not fit the content") from error
    if header["reader"] != reader.public_key().public_bytes_raw().hex():
        raise Unreadable("encrypted to another verifier")
    try:
        ephemeral = X25519PublicKey.from_public_bytes(bytes.fromhex(header["ephemeral"]))
        key = _shared_key(reader.exchange(ephemeral), content[:end])
        payload = AESGCM(key).decrypt(bytes.fromhex(header["nonce"]), body[end:], content[:end])
    except (InvalidTag, ValueError) as error:
        raise Unreadable("cannot be decrypted") from error
    return Sealed(payload=payload, time=header["time"])


def is_sealed_with(content: bytes, signer: Ed25519PublicKey, reader: X25519PrivateKey) -> bool:
    """Say whether an envelope names these two keys, be it rightly or not."""
    header, _ = _read_front(content)
    names = (signer.public_bytes_raw().hex(), reader.public_key().public_bytes_raw().hex())
    return (header["signer"], header["reader"]) == names


def _read_front(content: bytes) -> tuple[dict[str, Any], int]:
    """Return the header of an envelope that has the right form, and where it ends."""
    if not content.startswith(MAGIC):
        raise Malformed(f"expected a file that begins with {MAGIC.decode()}")
    header, end = read_header(content[len(MAGIC) :], _KEYS)
    end += len(MAGIC)
    if header["version"] != VERSION:
        raise Malformed(f"seal version {header['version']} is not known here (this reads {VERSION})")
    expected = end + header["length"] + TAG + SIGNATURE
    if header["length"] < 0 or len(content) != expected:
        raise Malformed(f"expected {expected} bytes, got {len(content)}")
    return header, end


def _shared_key(secret: bytes, front: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=b"fedsim proof" + front).derive(secret)


def _derived(*secret: str | int) -> bytes:
    return hashlib.sha256("/".join(map(str, ("fedsim proof key", *secret))).encode()).digest()
