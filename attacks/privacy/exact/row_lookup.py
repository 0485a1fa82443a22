"""Rows of a table whose categories are embedded: exact features, looked up column by column.

What leaks: every row of the batch as far as its features are found, and which categories of each column some
    row has, whatever the batch size and the number of local steps.
Paper: none; peeling's features, and DAGER's look-up (Petrov et al., NeurIPS 2024) for columns in place of
    tokens. Rows of an embedding's gradient: Melis et al. (S&P 2019), section 4.1.
Assumes: rows of a table; features that come of one column each, with linear layers behind them, as the
    attack for features wants them. Categories by themselves: a trained table for each column.
Fails: where the features are not found; the categories behind noise, which fills rows of zeros.
"""

import dataclasses
import logging
import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedsim.attacks.privacy import claims
from fedsim.attacks.privacy.text.structure import entering
from fedsim.core.errors import FedsimError
from fedsim.core.inputs import Number, Row
from fedsim.core.interfaces import Attack
from fedsim.core.training import batch_gradient
from fedsim.core.types import Observation, Reconstruction, Task, Weights

log = logging.getLogger(__name__)
MOVED = 1e-6  # of the largest feature: less is rounding
NEAR = 1e-3  # of a row's features: a row that was looked up is as far away, at most


class RowLookup(Attack):
    """Rows by the features that another attack finds, and categories by the embeddings' gradients."""

    def __init__(self, *, first: Attack) -> None:
        """Set the attack that finds features, such as peeling."""
        self.first = first

    def check(self, model: nn.Module, task: Task) -> None:
        """Refuse data without rows, and what the attack for features refuses."""
        row_of(task)
        self.first.check(model, task)

    def run(self, model: nn.Module, task: Task, observations: Sequence[Observation]) -> Reconstruction:
        """Find features, look rows up, and read the tables' gradients."""
        started, form = time.perf_counter(), row_of(task)
        seen = claims.checked(observations[-1])
        presence = categories_of(model, task, form, seen.received)
        try:
            guess = self.first.run(model, task, observations)
        except FedsimError as error:
            if presence is None:
                raise
            log.warning("%s; categories alone are told", error)
            guess = Reconstruction()
        if guess.embeddings is not None and guess.embedding_layer is not None:
            rows, near = _looked_up(model, form, guess.embedding_layer, guess.embeddings)
            sure = near if guess.certified is None else near & guess.certified
            guess = dataclasses.replace(
                guess, images=rows, certified=sure, embeddings=None, embedding_layer=None
            )
        return dataclasses.replace(guess, token_presence=presence, seconds=time.perf_counter() - started)


def row_of(task: Task) -> Row:
    """Return what a task's rows are, or refuse a task without any."""
    if not isinstance(task.inputs, Row):
        raise FedsimError(
            "expected rows of a table, got data that has none. Remedy: data=adult, tabular or csv."
        )
    return task.inputs


def _variants(form: Row, base: Tensor, column: int) -> Tensor:
    """Return a row with every category of a column, or with both ends of a number's range."""
    first, end = form.places[column]
    if isinstance(form.columns[column], Number):
        rows = base.repeat(2, 1)
        rows[1, first] = 1
        return rows
    rows = base.repeat(end - first, 1)
    rows[:, first:end] = torch.eye(end - first)
    return rows


def _base(form: Row) -> Tensor:
    base = torch.zeros(1, form.shape[-1])
    for first, _ in form.groups:
        base[:, first] = 1
    return base


def _looked_up(model: nn.Module, form: Row, layer: str, features: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows of the nearest features, column by column, and which are as near as can be."""
    base, rows = _base(form), torch.zeros(len(features), form.shape[-1])
    taken = torch.zeros(features.shape[1], dtype=torch.bool)
    for column, (first, end) in enumerate(form.places):
        shown = entering(model, layer, _variants(form, base, column).view(-1, *form.shape))
        own = (shown - shown[0]).abs().amax(dim=0) > MOVED * shown.abs().max()
        if bool((own & taken).any()):
            raise FedsimError(
                f"row_lookup: the inputs of linear layer {layer!r} mix columns. Remedy: attack=tableak."
            )
        taken |= own
        seen, known = features[:, own].to(shown), shown[:, own]
        if isinstance(form.columns[column], Number):
            way = known[1] - known[0]
            rows[:, first] = ((seen - known[0]) @ way / way.square().sum().clamp(min=1e-30)).clamp(0, 1)
        else:
            rows[:, first:end] = torch.eye(end - first)[torch.cdist(seen, known).argmin(dim=1)]
    images = rows.view(-1, *form.shape)
    again = entering(model, layer, images)
    return images, (again - features).norm(dim=1) <= NEAR * features.norm(dim=1)


def categories_of(model: nn.Module, task: Task, form: Row, received: Weights) -> Tensor | None:
    """Return which categories some row has (width,), by rows of tables' gradients that are not zero.

    None: no column has a table with rows of zeros: noise fills them. Tables are those of which a category
    moves its row alone.
    """
    presence, base = torch.zeros(form.shape[-1], dtype=torch.bool), _base(form)
    told = False
    for first, end in form.groups:
        rows = base.repeat(2, 1)
        rows[:, first:end] = torch.eye(end - first)[:2]
        moved = [
            batch_gradient(model, row.view(1, *form.shape), torch.zeros(1, dtype=torch.int64))[0]
            for row in rows
        ]
        tables = [
            name
            for name, tensor in received.items()
            if tensor.ndim == 2
            and len(tensor) == end - first
            and all(_changed(own[name]).tolist() == [place] for place, own in enumerate(moved))
        ]
        if tables:
            found = _changed(received[tables[0]])
            presence[first + found] = True
            told |= len(found) < end - first
    return presence if told else None


def _changed(tensor: Tensor) -> Tensor:
    return tensor.abs().amax(dim=1).nonzero()[:, 0]
