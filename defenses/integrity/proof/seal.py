"""Proofs that only the verifier can read and only the prover can have written.

X25519 with a fresh key agrees on a key with the verifier, HKDF-SHA256 stretches it, AES-256-GCM encrypts,
Ed25519 signs the SHA-256 of all of it. Package: cryptography.
"""

import hashlib
import os
import struct
import time
from dataclasses import dataclass
from typing import NamedTuple

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedsim.core.errors import FedsimError
from fedsim.defenses.integrity.proof.checkpoints import Malformed

MAGIC = b"FEDSIMPL"
VERSION = 2
TAG, SIGNATURE = 16, 64
# Version, signer, reader, ephemeral key, nonce, time, length: fixed, so that nothing has to be parsed.
FRONT = struct.Struct("<H32s32s32s12sQQ")
HEAD = len(MAGIC) + FRONT.size


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
    front = MAGIC + FRONT.pack(
        VERSION,
        signer.public_key().public_bytes_raw(),
        reader.public_bytes_raw(),
        ephemeral.public_key().public_bytes_raw(),
        nonce,
        int(time.time()) if now is None else now,
        len(payload),
    )
    key = _shared_key(ephemeral.exchange(reader), front)
    body = front + AESGCM(key).encrypt(nonce, payload, front)
    return body + signer.sign(hashlib.sha256(body).digest())  # several times faster than signing all of it


def unseal(content: bytes, signer: Ed25519PublicKey, reader: X25519PrivateKey) -> Sealed:
    """Check lengths, signature and recipient, and decrypt; every failure says which of them it was."""
    front = _read_front(content)
    body, signature = memoryview(content)[:-SIGNATURE], content[-SIGNATURE:]
    if front.signer != signer.public_bytes_raw():
        raise BadSignature("signed by another key than the prover's")
    try:
        signer.verify(signature, hashlib.sha256(body).digest())
    except InvalidSignature as error:
        raise BadSignature("the signature does not fit the content") from error
    if front.reader != reader.public_key().public_bytes_raw():
        raise Unreadable("encrypted to another verifier")
    return Sealed(payload=_decrypted(content, front, reader), time=front.time)


def _decrypted(content: bytes, front: "_Front", reader: X25519PrivateKey) -> bytes:
    try:
        ephemeral = X25519PublicKey.from_public_bytes(front.ephemeral)
        key = _shared_key(reader.exchange(ephemeral), content[:HEAD])
        return AESGCM(key).decrypt(front.nonce, memoryview(content)[HEAD:-SIGNATURE], content[:HEAD])
    except (InvalidTag, ValueError) as error:
        raise Unreadable("cannot be decrypted") from error


def content_digest(content: bytes, reader: X25519PrivateKey) -> str:
    """Return the digest of what an envelope holds, or of the envelope, if it cannot be opened.

    The same proof has the same, however often it is sealed.
    """
    try:
        payload = _decrypted(content, _read_front(content), reader)
    except (Malformed, Unreadable):
        payload = content
    return hashlib.sha256(payload).hexdigest()


def is_sealed_with(content: bytes, signer: Ed25519PublicKey, reader: X25519PrivateKey) -> bool:
    """Say whether an envelope names these two keys, be it rightly or not."""
    front = _read_front(content)
    return (front.signer, front.reader) == (signer.public_bytes_raw(), reader.public_key().public_bytes_raw())


class _Front(NamedTuple):
    version: int
    signer: bytes
    reader: bytes
    ephemeral: bytes
    nonce: bytes
    time: int
    length: int


def _read_front(content: bytes) -> _Front:
    """Return the fixed fields of an envelope whose length is what they say."""
    if not content.startswith(MAGIC):
        raise Malformed(f"expected a file that begins with {MAGIC.decode()}")
    if len(content) < HEAD:
        raise Malformed(f"expected a head of {HEAD} bytes, got {len(content)}")
    front = _Front(*FRONT.unpack_from(content, len(MAGIC)))
    if front.version != VERSION:
        raise Malformed(f"seal version {front.version} is not known here (this reads {VERSION})")
    expected = HEAD + front.length + TAG + SIGNATURE
    if len(content) != expected:
        raise Malformed(f"expected {expected} bytes, as declared; {len(content)} are there")
    return front


def _shared_key(secret: bytes, front: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=b"fedsim proof" + front).derive(secret)


def _derived(*secret: str | int) -> bytes:
    return hashlib.sha256("/".join(map(str, ("fedsim proof key", *secret))).encode()).digest()
