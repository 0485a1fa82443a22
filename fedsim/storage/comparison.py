"""A comparison's folder: which runs are its cells."""

from collections.abc import Iterable
from dataclasses import dataclass

from fedsim.storage.folder import Storage
from fedsim.storage.tables import read_rows, write_rows

CELLS_FILE = "cells.csv"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One line of cells.csv: an attack on a defense's federation, by a seed."""

    attack: str
    defense: str
    seed: int
    folder: str  # of the attack's run
    training: str  # of the federation's
    knows: bool  # the attacker is told the defense's settings

    @classmethod
    def of(cls, attack: str, defense: str, seed: int, *, knows: bool = False) -> "Cell":
        """Return the cell of an attack and a defense by their labels."""
        against = folder_name(defense)
        return cls(
            attack=attack,
            defense=defense,
            seed=seed,
            folder=f"cells/{folder_name(attack)}_against_{against}_{seed}",
            training=f"trainings/{against}_{seed}",
            knows=knows,
        )


def folder_name(label: str) -> str:
    """Return a label as the name of a folder."""
    plain = label.replace(" ", "")
    return "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in plain)


def write_cells(storage: Storage, cells: Iterable[Cell]) -> None:
    """Write cells.csv."""
    write_rows(storage, CELLS_FILE, Cell, cells)


def read_cells(storage: Storage) -> list[Cell]:
    """Read cells.csv."""
    return read_rows(storage, CELLS_FILE, Cell)
