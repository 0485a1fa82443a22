"""Greedy search at the price of one gradient for each example: batches are then sums.

What it gains: the same as greedy search, from far more candidate batches in the same time.
Paper: Kong et al., Can Membership Inferencing be Refuted? (2023), who make Thudi et al.'s search cheaper.
Assumes: a loss that is a mean over examples, so that a batch's gradient is the mean of theirs.
Caught by: any recomputed step, at a delta that was calibrated.
"""

import torch
from torch import Tensor

from fedsim.attacks.integrity.forging.replacement import (
    expect_examples,
    flat_gradient,
    gap,
    replaced,
    targets,
)
from fedsim.core.challenges import Challenge
from fedsim.core.interfaces import Forgery
from fedsim.core.settings import whole
from fedsim.core.training import Batch, batch_gradient

COORDINATES = 20_000  # of the gradient, drawn at random: enough to rank candidates by
FINAL = 5  # candidates that are compared by their whole gradient


class Kong(Forgery):
    """Many random replacements, ranked by sums of the examples' own gradients; the best few are checked."""

    pixels = "uint8"
    tokens = True

    def __init__(self, *, examples: int = 200, candidates: int = 2000) -> None:
        """Set how many examples to take gradients of, and how many batches to make of them."""
        self.examples = whole("forgery.examples", examples)
        self.candidates = whole("forgery.candidates", candidates)

    def forge(self, challenge: Challenge) -> Batch:
        """Take gradients of some examples once, then rank batches of them."""
        number = expect_examples(challenge)
        chance = challenge.generator
        drawn = torch.randperm(len(challenge.owned), generator=chance)[: max(self.examples, number)]
        others = challenge.examples(challenge.owned[drawn])
        size = sum(parameter.numel() for parameter in challenge.model.parameters())
        places = torch.randperm(size, generator=chance)[:COORDINATES]
        mine = _gradients(challenge, challenge.batch, targets(challenge), places).sum(dim=0)
        theirs = _gradients(challenge, others, torch.arange(len(drawn)), places)
        # With one example to replace, every other is a candidate; with more, random sets of them are.
        sets = torch.arange(len(drawn))[:, None]
        if number > 1:
            shuffled = torch.rand(self.candidates, len(drawn), generator=chance)
            sets = shuffled.argsort(dim=1)[:, :number]
        members = torch.zeros(len(sets), len(drawn), dtype=theirs.dtype).scatter_(1, sets, 1.0)
        distances = (members @ theirs - mine).square().sum(dim=1)
        wanted, _ = batch_gradient(challenge.model, challenge.batch.images, challenge.batch.labels)

        def whole_gap(batch: Batch) -> float:
            return gap(batch_gradient(challenge.model, batch.images, batch.labels)[0], wanted)

        best = [sets[place] for place in distances.argsort()[:FINAL]]
        return min(
            (
                replaced(challenge, Batch(images=others.images[chosen], labels=others.labels[chosen]))
                for chosen in best
            ),
            key=whole_gap,
        )


def _gradients(challenge: Challenge, batch: Batch, rows: Tensor, places: Tensor) -> Tensor:
    """Return the gradients of single examples at some coordinates."""
    found = list[Tensor]()
    for row in rows.tolist():
        one = slice(row, row + 1)
        gradient, _ = batch_gradient(challenge.model, batch.images[one], batch.labels[one])
        found.append(flat_gradient(gradient)[places])  # whole gradients of large models would not fit
    return torch.stack(found)
