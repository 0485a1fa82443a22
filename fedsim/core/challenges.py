"""A step of a training that is to be claimed for other data."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

from fedsim.core.training import Batch
from fedsim.core.types import Task


@dataclass(frozen=True, kw_only=True, eq=False)
class Challenge:
    """A step of a trace, to be claimed for other data, and what there is to make that of."""

    model: nn.Module  # with the weights before the step
    batch: Batch  # that the step is taken on
    unwanted: Tensor  # places in the batch of the examples that must not appear; none: any other batch
    task: Task
    owned: Tensor  # indices of other examples at hand, none of them in the batch
    examples: Callable[[Tensor], Batch]  # the examples at indices
    generator: Generator
    learning_rate: float | None = None  # of the step; None: the gradient is asked for


def challenge_on(
    own: Tensor,
    *,
    model: nn.Module,
    unwanted: Tensor | float,
    task: Task,
    owned: Tensor,
    examples: Callable[[Tensor], Batch],
    chance: Generator,
    learning_rate: float | None = None,
) -> Challenge:
    """Return the challenge of a step on the examples at some indices.

    unwanted: places in the batch, or a share of it to draw them from: none, or at least one.
    """
    if isinstance(unwanted, Tensor):
        places = unwanted
    else:
        number = max(1, round(unwanted * len(own))) if unwanted else 0
        places = torch.randperm(len(own), generator=chance)[:number].sort().values
    return Challenge(
        model=model,
        batch=examples(own),
        unwanted=places,
        task=task,
        owned=owned[~torch.isin(owned, own)],
        examples=examples,
        generator=chance,
        learning_rate=learning_rate,
    )
