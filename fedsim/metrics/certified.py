"""Share of the batch that an exact attack restored and vouched for."""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from fedsim.core.interfaces import Metric
from fedsim.core.prior import Prior
from fedsim.core.types import Reconstruction, Score, Truth

NEAR = 0.01  # relative error up to which a certified example is one of the batch


class Certified(Metric):
    """Share of the examples that are certified exact, and are; a false certificate takes one away."""

    title = "examples certified exact"
    unit = "share of examples"
    bounded = True

    def score(self, guess: Reconstruction, truth: Truth) -> Score | None:
        """Count certificates against the truth."""
        right = right_certificates(guess, truth)
        if right is None:
            return None
        value = (int(right.sum()) - int((~right).sum())) / len(truth.labels)
        return Score(metric="certified", value=value)

    def blind(self, prior: Prior) -> Sequence[Reconstruction]:
        """Return the prior's guesses, none of them certified: without a gradient nothing is certain."""
        shown = [guess for guess in prior.guesses() if guess.images is not None or guess.embedding_layer]
        return [
            dataclasses.replace(guess, certified=torch.zeros(len(_rows(guess)), dtype=torch.bool))
            for guess in shown
        ]


def right_certificates(guess: Reconstruction, truth: Truth, near: float = NEAR) -> Tensor | None:
    """Return of every certified example whether it is in the batch, so near; each true one counts once."""
    if guess.certified is None:
        return None
    shown = _rows(guess)
    true = truth.embeddings if shown is guess.embeddings else truth.images
    if true is None or shown.shape[1:] != true.shape[1:]:
        return None
    rows, goals = shown[guess.certified].double().flatten(1), true.double().flatten(1)
    hit = torch.cdist(rows, goals) <= near * goals.norm(dim=1)
    if shown is guess.tokens:  # a token is right or wrong
        hit = (rows[:, None] == goals).all(dim=2)
    right, free = torch.zeros(len(rows), dtype=torch.bool), torch.ones(len(goals), dtype=torch.bool)
    for place in range(len(rows)):
        if len(hits := (hit[place] & free).nonzero()):
            right[place], free[hits[0, 0]] = True, False
    return right


def _rows(guess: Reconstruction) -> Tensor:
    shown = next((own for own in (guess.images, guess.tokens, guess.embeddings) if own is not None), None)
    assert shown is not None  # a certificate is of something
    return shown
