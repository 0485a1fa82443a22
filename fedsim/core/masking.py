"""Secure aggregation: masks that cancel in the sum, and shares that bring back those of clients that left.

Paper: Bell et al., Secure Single-Server Aggregation with (Poly)Logarithmic Overhead (CCS 2020, SecAgg+),
    after Bonawitz et al. (CCS 2017). Each client masks its numbers with one stream of its own and one for
    every neighbour, which the neighbour subtracts. Shares of both secrets lie with the neighbours: of a
    client that answered they give its own mask, of one that left the streams that nobody subtracts, never
    both.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from torch import Tensor

from fedsim.core.errors import FedsimError
from fedsim.core.randomness import generator
from fedsim.core.types import Weights

FRACTION = 44  # bits behind the point: what is rounded off is 3e-14
PRIME = 2**521 - 1  # above every secret of 32 bytes
SECRET = 32  # bytes


def secret(seed: int, *names: str | int) -> bytes:
    """Return a client's secret for one purpose. It follows from the run's seed: for experiments alone."""
    return hashlib.sha256("/".join(map(str, ("secure aggregation", seed, *names))).encode()).digest()


def public_key(private: bytes) -> bytes:
    """Return the public half of a key."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agreed(private: bytes, public: bytes, purpose: str) -> bytes:
    """Return the key that two clients have in common, for a purpose."""
    try:
        shared = X25519PrivateKey.from_private_bytes(private).exchange(
            X25519PublicKey.from_public_bytes(public)
        )
    except ValueError as error:
        raise FedsimError(f"expected a public key of 32 bytes, got {len(public)} that are none") from error
    return hashlib.sha256(purpose.encode() + shared).digest()


def stream(key: bytes, like: Weights) -> dict[str, Tensor]:
    """Return numbers modulo 2^64 that follow from a key, in the shapes of these tensors."""
    cipher = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    return {
        name: torch.from_numpy(
            np.frombuffer(cipher.update(bytes(8 * tensor.numel())), np.int64).reshape(tensor.shape).copy()
        )
        for name, tensor in like.items()
    }


def neighbours(clients: Sequence[int], degree: int | None, seed: int, round: int) -> dict[int, list[int]]:
    """Return whom each client shares masks with: a ring of random order, each with so many on both sides.

    None: twice the binary logarithm of their number, and two: SecAgg+ asks for that to stay connected.
    """
    number = len(clients)
    wanted = 2 * math.ceil(math.log2(max(2, number))) + 2 if degree is None else degree
    reach = min(-(-wanted // 2), number // 2)
    order = torch.randperm(number, generator=generator(seed, "neighbours", round)).tolist()
    found: dict[int, list[int]] = {}
    for place, who in enumerate(order):
        near = {order[(place + step) % number] for step in range(-reach, reach + 1)} - {who}
        found[clients[who]] = sorted(clients[other] for other in near)
    return found


def threshold(degree: int) -> int:
    """Return how many neighbours bring a secret back: more than half, so that no two answers give both."""
    return degree // 2 + 1


def fixed(reply: Weights, weight: float, terms: int) -> dict[str, Tensor]:
    """Return a weighted reply as whole numbers; terms: of the sum that must not overflow."""
    most = 2.0 ** (62 - FRACTION) / terms
    found = {}
    for name, tensor in reply.items():
        values = tensor.double() * weight
        if tensor.numel() and not float(values.abs().max()) <= most:
            raise FedsimError(
                f"secure_aggregation: tensor {name!r} holds {float(values.abs().max()):.3g}, expected at "
                f"most {most:.3g} for a sum of {terms}. Remedy: smaller learning rates, or defense=[clip]."
            )
        found[name] = (values * 2.0**FRACTION).round().long()
    return found


def floating(total: Weights) -> dict[str, Tensor]:
    """Return whole numbers as what they stand for."""
    return {name: tensor.double() / 2.0**FRACTION for name, tensor in total.items()}


def masked(numbers: Weights, own: bytes, pairs: Mapping[int, bytes], client: int) -> dict[str, Tensor]:
    """Add a client's own mask and those that it has in common with others, by their numbers."""
    hidden = added(numbers, stream(own, numbers), 1)
    for other, key in pairs.items():
        hidden = added(hidden, stream(key, numbers), 1 if client < other else -1)
    return hidden


def added(left: Weights, right: Weights, sign: int) -> dict[str, Tensor]:
    """Return a sum or difference modulo 2^64."""
    return {name: tensor.add(right[name], alpha=sign) for name, tensor in left.items()}


def shares(value: bytes, holders: Sequence[int], needed: int, salt: bytes) -> dict[int, bytes]:
    """Split a secret: any `needed` of the holders' shares give it back, fewer tell nothing (Shamir 1979)."""
    wide = [hashlib.shake_256(salt + value + bytes([place])).digest(80) for place in range(1, needed)]
    terms = [int.from_bytes(value, "big"), *(int.from_bytes(drawn, "big") % PRIME for drawn in wide)]
    return {
        who: (sum(term * pow(who + 1, power, PRIME) for power, term in enumerate(terms)) % PRIME).to_bytes(
            66, "big"
        )
        for who in holders
    }


def joined(held: Mapping[int, bytes], needed: int) -> bytes:
    """Return the secret that these holders' shares are of."""
    if len(held) < needed:
        raise FedsimError(f"expected {needed} shares of a secret, got {len(held)}: too many clients left")
    points = {who + 1: int.from_bytes(share, "big") for who, share in sorted(held.items())[:needed]}
    total = 0
    for at, value in points.items():
        above = math.prod(-other for other in points if other != at)
        below = math.prod(at - other for other in points if other != at)
        total += value * above * pow(below, -1, PRIME)
    if (total := total % PRIME) >= 2 ** (8 * SECRET):
        raise FedsimError("shares do not fit together: a client told another number than it was given")
    return total.to_bytes(SECRET, "big")


def sealed(key: bytes, content: bytes, label: bytes) -> bytes:
    """Encrypt for who has the key; label: what it is, which nobody can change. A key seals one content."""
    return ChaCha20Poly1305(key).encrypt(bytes(12), content, label)


def opened(key: bytes, content: bytes, label: bytes) -> bytes:
    """Decrypt, or say that it was changed on its way."""
    try:
        return ChaCha20Poly1305(key).decrypt(bytes(12), content, label)
    except InvalidTag as error:
        raise FedsimError("a share was changed on its way. Remedy: distrust the server.") from error
