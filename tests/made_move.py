"""A move of a forging game, made up: its names and reasons are words of somebody's choice."""

import torch

from fedsim.core.interfaces import StepVerdict
from fedsim.core.training import Batch
from fedsim.integrity.forge import Move


def a_move(words: str, number: int) -> Move:
    batch = Batch(images=torch.rand(2, 1, 3, 3), labels=torch.tensor([0, 1]))
    verdict = StepVerdict(
        accepted=bool(number % 2),
        reason=words,
        domain="box",
        gone=1,
        error=0.1 + number,
        benign=0.01,
        delta=0.02,
    )
    return Move(
        game=words,
        forgery=words,
        step=number,
        number=0,
        unwanted=1,
        size=2,
        planned=False,
        verdict=verdict,
        reason=words,
        loss=1.0 + number,
        moved=0.1 + number,
        seconds=1.0,
        suspicions={"a": 0.1 * number, "b": 0.2},
        honest={"a": 0.1, "b": 0.2},
        used=batch,
        claimed=batch,
    )
