"""A move of a forging game, made up: its names and reasons are words of somebody's choice."""

import torch

from fedsim.core.training import Batch
from fedsim.storage.games import MoveBatches, MoveRow


def a_move(words: str, number: int) -> MoveRow:
    return MoveRow(
        game=words,
        forgery=words,
        step=number,
        batch=0,
        unwanted=1,
        size=2,
        gone=1,
        planned=False,
        accepted=bool(number % 2),
        check="",
        domain="box",
        error=0.1 + number,
        benign=0.01,
        delta=0.02,
        once=False,
        twice=False,
        twin=number == 3,
        near_l2=2.0,
        near_ssim=None,
        near_embedding=0.1,
        loss=1.0 + number,
        moved=0.1 + number,
        seconds=1.0,
        claimed=True,
        dark_pixels_lit=0.1 * number,
        near_duplicates=0.2,
        label_against_neighbours=0.3,
        honest_dark_pixels_lit=0.1,
        honest_near_duplicates=0.2,
        honest_label_against_neighbours=0.1,
        reason=words,
    )


def some_batches() -> MoveBatches:
    batch = Batch(images=torch.rand(2, 1, 3, 3), labels=torch.tensor([0, 1]))
    return MoveBatches(used=batch, claimed=batch)
