"""Data that a prover has committed to: a Merkle tree over its examples, and paths that show them one by one.

The root binds every example to its place, so what is shown later was there before; it tells nothing else.
Layout: docs/proof-format.md.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Committed
from fedsim.core.training import Batch, Commitment

SIZE = 32  # bytes of a digest
EMPTY = bytes(SIZE)  # where there is no example: the tree is filled up to a power of two


class MerkleTree(Committed):
    """Keeps the digests of a data set's examples, and shows that examples are among them."""

    def __init__(self, leaves: Iterable[bytes]) -> None:
        """Commit to the examples of these leaves, in this order."""
        level = list(leaves)
        if not level:
            raise FedsimError("expected at least one example to commit to, got none")
        number = len(level)
        level += [EMPTY] * ((1 << depth_of(number)) - number)
        self.levels = [level]
        while len(level) > 1:
            level = [_node(one, other) for one, other in zip(level[::2], level[1::2], strict=True)]
            self.levels.append(level)
        self.commitment = Commitment(root=_root(level[0], number), examples=number)

    def show(self, batch: Batch, places: Sequence[int]) -> Batch:
        """Return a batch with the paths that lead from its examples to the root."""
        paths = [node for place in places for node in self._path(place)]
        return replace(batch, paths=b"".join(paths))

    def _path(self, place: int) -> Iterator[bytes]:
        for level in self.levels[:-1]:
            yield level[place ^ 1]
            place //= 2


def membership_problem(batch: Batch, places: Sequence[int], commitment: Commitment) -> str | None:
    """Say which example of a batch is not at its place of the committed data, or None."""
    depth = depth_of(commitment.examples)
    if len(batch.paths) != len(places) * depth * SIZE:
        return f"expected paths of {len(places) * depth * SIZE} bytes, got {len(batch.paths)}"
    for number, (place, leaf) in enumerate(zip(places, leaves_of(batch), strict=True)):
        if not 0 <= place < commitment.examples:
            return f"example {place} is not among the {commitment.examples} committed to"
        start = number * depth * SIZE
        steps = (batch.paths[start + level * SIZE : start + (level + 1) * SIZE] for level in range(depth))
        if _root(_climbed(leaf, place, steps), commitment.examples) != commitment.root:
            return f"example {place} is not the one that was committed to"
    return None


def leaves_of(data: Batch) -> Iterator[bytes]:
    """Yield the digest of each example: type, shape and raw bytes of its image, and its label."""
    images = np.ascontiguousarray(data.images.detach().cpu().numpy())
    labels = np.ascontiguousarray(data.labels.detach().cpu().numpy())
    kind = f"{images.dtype.str} {images.shape[1:]} {labels.dtype.str} {labels.shape[1:]} ".encode()
    for image, label in zip(images, labels, strict=True):
        yield hashlib.sha256(b"\0" + kind + image.tobytes() + label.tobytes()).digest()


def depth_of(number: int) -> int:
    """Return how many digests a path has in a tree over so many examples."""
    return (number - 1).bit_length()


def _climbed(node: bytes, place: int, path: Iterator[bytes]) -> bytes:
    for beside in path:
        node = _node(beside, node) if place & 1 else _node(node, beside)
        place //= 2
    return node


def _node(one: bytes, other: bytes) -> bytes:
    return hashlib.sha256(b"\1" + one + other).digest()


def _root(top: bytes, number: int) -> str:
    return hashlib.sha256(b"\2" + number.to_bytes(8, "little") + top).hexdigest()
