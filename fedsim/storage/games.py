"""What forging games leave: forgeries.csv with every move, and a batch of each forgery to look at."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING

from fedsim.core.errors import FedsimError, printable
from fedsim.storage.files import as_file_name, reading
from fedsim.storage.folder import Storage
from fedsim.storage.tables import append_row, read_rows, write_rows

if TYPE_CHECKING:
    from torch import Tensor

    from fedsim.core.training import Batch

MOVES = "forgeries.csv"
HONEST = "honest_"  # begins the columns of statistics of the batch at hand


@dataclass(frozen=True, kw_only=True)
class MoveRow:
    """One challenge, its answer, and what came of it: a line of forgeries.csv."""

    game: str  # what distinguishes it from others in the folder; empty: it is alone
    forgery: str
    step: int
    batch: int
    unwanted: int  # examples that must not appear
    size: int  # of the batch
    gone: int  # of the unwanted examples, those that do not appear in what was claimed
    planned: bool  # the adversary composed the batch that was trained on
    accepted: bool  # the adversary won
    check: str  # that failed; forgery: nothing was claimed
    domain: str  # the strictest that the claimed batch lies in; empty: nothing was claimed
    error: float | None  # of the recomputed weights, l2; None here and below: nothing was claimed
    benign: float | None  # the largest of honest recomputations
    delta: float | None
    once: bool  # valid, and within the honest error itself
    twice: bool  # valid, and within twice that
    twin: bool  # accepted, and the same weights in float64 but for rounding
    near_l2: (
        float | None
    )  # of the nearest claimed image from an unwanted one: root mean square, in grey levels
    near_ssim: float | None  # the same by 1 - SSIM
    near_embedding: float | None  # the same by what enters the last layer, in units of distances in the batch
    loss: float  # of the unwanted examples before the step
    moved: float | None  # root mean square of what the forgery changed in the unwanted images; None: tokens
    seconds: float = field(compare=False)
    claimed: bool  # a batch of as many images was claimed, of their shape
    dark_pixels_lit: float  # how strange the claimed batch is, by several statistics
    near_duplicates: float
    label_against_neighbours: float
    honest_dark_pixels_lit: float  # the same, of the batch at hand
    honest_near_duplicates: float
    honest_label_against_neighbours: float
    reason: str  # of a rejection, or why nothing was claimed

    @property
    def name(self) -> str:
        """The forgery, and its game: games differ too much to be thrown together."""
        return f"{self.forgery}, {self.game}" if self.game else self.forgery

    @property
    def judged(self) -> bool:
        """Whether there was a claim to judge."""
        return self.benign is not None


STATISTICS = tuple(
    column.name.removeprefix(HONEST) for column in fields(MoveRow) if column.name.startswith(HONEST)
)


@dataclass(frozen=True, kw_only=True, eq=False)
class MoveBatches:
    """What a step was taken on, and what was claimed in its place."""

    used: "Batch"
    claimed: "Batch"


def keep_move(storage: Storage, row: MoveRow, batches: MoveBatches | None) -> None:
    """Add a move, and its batches if they are the first that its forgery claimed."""
    if batches is not None and not storage.has(file := batches_file(row)):
        tensors: dict[str, Tensor] = {"used": batches.used.images, "claimed": batches.claimed.images}
        tensors |= {"used_labels": batches.used.labels, "claimed_labels": batches.claimed.labels}
        storage.write_tensors(file, tensors)
    append_row(storage, MOVES, row)


def moves(storage: Storage) -> list[MoveRow]:
    """Read all moves, in the order of play."""
    return read_rows(storage, MOVES, MoveRow)


def adopt_moves(storage: Storage, games: Sequence[Path]) -> None:
    """Write the moves of several games as one table, in this order, with the batches to look at.

    A game that is damaged has no moves here until it is played again.
    """
    found = list[MoveRow]()
    for path in games:
        try:
            game = Storage(path)
            own = moves(game)
            for file in dict.fromkeys(map(batches_file, own)):
                if not storage.has(file) and (content := game.read(file)) is not None:
                    storage.write(file, content)
        except FedsimError:
            continue
        found += own
    write_rows(storage, MOVES, MoveRow, found)


def batches_of(storage: Storage, row: MoveRow) -> MoveBatches | None:
    """Read the first batches that a move's forgery claimed, if it ever did."""
    from fedsim.core.training import Batch  # torch: whoever reads the moves alone does without

    if (found := storage.read_tensors(file := batches_file(row))) is None:
        return None
    with reading(storage.root / file):
        used, claimed = (
            Batch(images=found[0][k], labels=found[0][f"{k}_labels"]) for k in ("used", "claimed")
        )
    return MoveBatches(used=used, claimed=claimed)


def batches_file(row: MoveRow) -> str:
    """Return where the first batches of a move's forgery are."""
    plain = re.sub(r"[^\w.=-]+", "_", printable(row.name))  # as it is read from the table again
    return f"batches/{as_file_name(plain)}.safetensors"
