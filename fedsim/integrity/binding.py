"""A training that its prover could not arrange: its beginning and the order of its data follow from a nonce.

The verifier gives the nonce, the data's root and the prover's key go into the same hash: other data, or
another prover, would have begun elsewhere.
"""

import hashlib
from dataclasses import replace
from weakref import WeakKeyDictionary

import torch

from fedsim.core.randomness import derived_seed
from fedsim.core.training import Batch, Commitment
from fedsim.data.images import Images
from fedsim.defenses.integrity.proof.commitment import MerkleTree, leaves_of
from fedsim.integrity.training import CentralTraining

CHUNK = 1000  # examples that are read at a time
_COMMITTED: WeakKeyDictionary[Images, Commitment] = WeakKeyDictionary()


def bound(training: CentralTraining, prover: bytes, nonce: bytes, root: str) -> CentralTraining:
    """Return the training with the beginning and the order of data that a nonce leads this prover to."""
    words = b"fedsim beginning" + prover + nonce + bytes.fromhex(root)
    secret = int.from_bytes(hashlib.sha256(words).digest()[:8], "big") >> 1
    draw = training.drawn or training.fresh
    return replace(training, seed=secret, fresh=lambda number: draw(derived_seed(secret, "fresh", number)))


def commitment_to(train: Images) -> Commitment:
    """Return the commitment to a data set, read in parts; once, as long as it is at hand."""
    if train not in _COMMITTED:
        _COMMITTED[train] = _committed(train)
    return _COMMITTED[train]


def _committed(train: Images) -> Commitment:
    parts = torch.split(torch.arange(len(train.labels)), CHUNK)
    data = (Batch(images=train.batch(part), labels=train.labels[part]) for part in parts)
    return MerkleTree(leaf for part in data for leaf in leaves_of(part)).commitment
