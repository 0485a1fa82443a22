"""Sequences whose items are made where somebody looks at them: as objects they may be many times a file."""

from collections.abc import Callable, Sequence
from typing import TypeVar, overload

Item = TypeVar("Item", covariant=True)


class Lazily(Sequence[Item]):
    """A sequence of so many items, each made by a function of its place."""

    def __init__(self, number: int, at: Callable[[int], Item]) -> None:
        """Set how many there are, and what makes each."""
        self._number, self._at = number, at

    def __len__(self) -> int:
        """Return how many there are."""
        return self._number

    @overload
    def __getitem__(self, place: int) -> Item: ...

    @overload
    def __getitem__(self, place: slice) -> "Lazily[Item]": ...

    def __getitem__(self, place: int | slice) -> "Item | Lazily[Item]":
        """Make one item, or a sequence of those in a slice."""
        chosen = range(self._number)[place]
        return (
            self._at(chosen)
            if isinstance(chosen, int)
            else Lazily(len(chosen), lambda n: self._at(chosen[n]))
        )

    def __eq__(self, other: object) -> bool:
        """Compare with any other sequence, item by item."""
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        """Return what equal sequences share."""
        return hash(tuple(self))
