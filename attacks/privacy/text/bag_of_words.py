"""Which words are in the batch, from the gradient of the token embeddings alone.

What leaks: the bag of words: every token that some text of the batch holds.
Paper: Melis et al., Exploiting Unintended Feature Leakage in Collaborative Learning (S&P 2019), section 4.1.
Assumes: an embedding table that is trained and not shared with the output layer.
Fails: embeddings that are frozen, or noise on their gradient, which hides every row.
"""

import time
from collections.abc import Sequence

import torch
from torch import nn

from fedsim.attacks.privacy.text.dager import tokens_of
from fedsim.attacks.privacy.text.embeddings import tables_of
from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Attack
from fedsim.core.types import Observation, Reconstruction, Task


class BagOfWords(Attack):
    """The set of a batch's tokens, by rows of the embedding's gradient that are not zero."""

    def check(self, model: nn.Module, task: Task) -> None:
        """Refuse data without tokens."""
        tokens_of(task)

    def run(self, model: nn.Module, task: Task, observations: Sequence[Observation]) -> Reconstruction:
        """Read the rows."""
        started, form = time.perf_counter(), tokens_of(task)
        tables = tables_of(model, form, observations[-1].received)
        if tables is None:
            raise FedsimError(
                "bag_of_words: expected an embedding's gradient with rows of zeros, got none: embeddings are "
                "frozen, shared with the output layer, or behind noise. Remedy: attack=dager."
            )
        presence = torch.zeros(len(form.vocabulary), dtype=torch.bool)
        presence[tables.present] = True
        return Reconstruction(token_presence=presence, seconds=time.perf_counter() - started)
