"""At which place which token stands, from the gradients of both embedding tables behind one norm.

What comes back through a LayerNorm is orthogonal to what went in. A token's row is the sum of what comes
back to its places, a place's row that over its tokens. So a row that is orthogonal to one sum of embeddings
(token, place) and to no other is what came back to that pair alone: it is settled, taken off the other sum,
and others come out, as peeling does.
"""

import torch
from torch import Tensor

EMPTY = 1e-3  # of a row: less is rounding
ROUNDING, MOST = 1e-6, 1e-4  # cosines of a whole row, and of what is left of one; chance gives about 4e-2
PASSES = 30


def standing(tokens: Tensor, places: Tensor, entering: Tensor) -> tuple[Tensor, Tensor]:
    """Return (tokens, places) whether a token may stand at a place, and whether it surely does.

    tokens: rows (n, features) of the tokens that are there; places: rows (length, features); entering:
    (n, length, features) what goes into the norm for each token at each place.
    """
    rows, sums, inside = tokens.double().clone(), places.double().clone(), entering.double()
    inside = inside - inside.mean(dim=2, keepdim=True)
    inside = inside / inside.norm(dim=2, keepdim=True).clamp(min=1e-300)
    whole, all_sums = rows.norm(dim=1), sums.norm(dim=1)
    settled = torch.zeros(inside.shape[:2], dtype=torch.bool)
    for _ in range(PASSES):
        open_rows, open_sums = rows.norm(dim=1) > EMPTY * whole, sums.norm(dim=1) > EMPTY * all_sums
        possible = open_rows[:, None] & open_sums[None, :]
        by_row = possible & _orthogonal(torch.einsum("nd,nld->nl", rows, inside), rows, whole)
        alone = by_row.sum(dim=1) == 1
        for token in alone.nonzero()[:, 0].tolist():
            place = int(by_row[token].nonzero()[0, 0])
            settled[token, place] = True
            sums[place] -= rows[token]
            rows[token] = 0
        possible &= ~alone[:, None] & (sums.norm(dim=1) > EMPTY * all_sums)[None, :]
        by_sum = possible.T & _orthogonal(torch.einsum("ld,nld->ln", sums, inside), sums, all_sums)
        single = by_sum.sum(dim=1) == 1
        for place in single.nonzero()[:, 0].tolist():
            token = int(by_sum[place].nonzero()[0, 0])
            settled[token, place] = True
            rows[token] -= sums[place]
            sums[place] = 0
        if not bool(alone.any() | single.any()):
            break
    return settled | possible, settled


def _orthogonal(products: Tensor, left: Tensor, whole: Tensor) -> Tensor:
    """Say which products are zero but for rounding, of what is left of rows that were longer."""
    lengths = left.norm(dim=1).clamp(min=1e-300)
    tolerance = (ROUNDING * whole / lengths).clamp(max=MOST)
    near: Tensor = products.abs() / lengths[:, None] <= tolerance[:, None]
    return near
