"""Moves of whole tokens between steps of gradient matching, and how usual a text is.

Paper: Balunovic et al., LAMP: Extracting Text from Gradients with Language Model Priors (NeurIPS 2022).
"""

import torch
from torch import Generator, Tensor

from fedsim.core.inputs import Tokens

SMOOTHING = 0.1  # of a pair's count: what was never seen is rare, not impossible


def usual_pairs(public: Tensor, form: Tokens) -> Tensor:
    """Return how unlikely a token is to follow another (vocabulary, vocabulary), by public texts."""
    size = len(form.vocabulary)
    singles = torch.bincount(public.flatten(), minlength=size).float()
    shares = (singles + SMOOTHING) / (singles + SMOOTHING).sum()
    counts = torch.bincount((public[:, :-1] * size + public[:, 1:]).flatten(), minlength=size * size)
    pairs = counts.view(size, size).float() + shares  # a token that was never seen is followed as any is
    likely: Tensor = (pairs / pairs.sum(dim=1, keepdim=True)).log()
    return -likely


def unusual(tokens: Tensor, pairs: Tensor, form: Tokens) -> float:
    """Return the mean surprise of a token by the one before it."""
    before, after = tokens[:, :-1].flatten(), tokens[:, 1:].flatten()
    told = after != form.padding
    return float(pairs[before, after][told].mean()) if bool(told.any()) else 0.0


def moved(
    point: Tensor, lengths: Tensor, first: int, open_ends: bool, random: Generator
) -> tuple[Tensor, Tensor]:
    """Return a point (K, length, features) with some places changed, and the texts' lengths.

    first: places before it are marks. open_ends: lengths are a guess, and may change, too.
    """
    changed, ends = point.clone(), lengths.clone()
    kind = _draw(5 if open_ends else 4, random)
    text = _draw(len(point), random)
    own = max(1, int(lengths[text]) - first - 1)
    here, there = first + _draw(own, random), first + _draw(own, random)
    if kind == 0:  # two tokens change places
        changed[text, [here, there]] = point[text, [there, here]]
    elif kind == 1:  # a piece is put elsewhere
        low, high = sorted((here, there))
        rest = torch.cat([point[text, first:low], point[text, high + 1 : first + own]])
        cut = _draw(len(rest) + 1, random)
        changed[text, first : first + own] = torch.cat([rest[:cut], point[text, low : high + 1], rest[cut:]])
    elif kind == 2:  # the end comes first
        changed[text, first : first + own] = torch.roll(point[text, first : first + own], here - first, 0)
    elif kind == 3:  # tokens of two texts change places
        other = _draw(len(point), random)
        there = first + _draw(max(1, int(lengths[other]) - first - 1), random)
        changed[text, here], changed[other, there] = point[other, there], point[text, here]
    else:
        most = point.shape[1]
        ends[text] = min(most, max(first + 2, int(ends[text]) + (-3, -2, -1, 1, 2, 3)[_draw(6, random)]))
    return changed, ends


def _draw(below: int, random: Generator) -> int:
    return int(torch.randint(below, (1,), generator=random))
