"""What a server can say of a private batch before it sees a gradient: every score's baseline comes of it."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsim.core.types import Reconstruction


@dataclass(frozen=True, kw_only=True, eq=False)
class Prior:
    """What is known of one batch without its gradient. Nothing in it comes from the truth but the size.

    images, embeddings, probabilities: guesses to try, each one tensor; a single row stands for all.
    """

    num_examples: int
    batches: Tensor  # (S, num_classes): class counts of batches as the federation's rules would draw them
    tokens: Sequence[Tensor] = ()  # (1 or N, length): frequent ones, public texts
    vocabulary: int = 0  # tokens that there are; of rows, categories and numbers
    images: Sequence[Tensor] = ()  # (1 or N, C, H, W): grey, the task's mean, a public mean, public images
    embeddings: Sequence[Tensor] = ()  # of public images, in the form that the guess has
    embedding_layer: str | None = None  # as in Reconstruction
    probabilities: Sequence[Tensor] = ()

    def guesses(self) -> list[Reconstruction]:
        """Return blind guesses of everything; a metric takes those that it can score."""
        return [
            *(Reconstruction(class_counts=counts, class_presence=counts > 0) for counts in self._counts()),
            *(self._pictures(images) for images in self.images),
            *(self._texts(tokens) for tokens in self.tokens),
            *(
                Reconstruction(
                    embeddings=self._for_all(rows) if self.embedding_layer else rows,
                    embedding_layer=self.embedding_layer,
                )
                for rows in self.embeddings
            ),
            *(Reconstruction(probabilities=rows) for rows in self.probabilities),
        ]

    def _counts(self) -> list[Tensor]:
        """Return the mean counts of the batches, made whole, and all examples in the most frequent class."""
        mean = self.batches.double().mean(dim=0)
        whole = mean.floor().long()
        missing = max(0, self.num_examples - int(whole.sum()))
        whole[(mean - whole).argsort(descending=True, stable=True)[:missing]] += 1
        one = torch.zeros_like(whole)
        one[mean.argmax()] = self.num_examples
        return [whole, one]

    def _texts(self, tokens: Tensor) -> Reconstruction:
        presence = torch.zeros(self.vocabulary, dtype=torch.bool)
        presence[tokens] = True
        return Reconstruction(tokens=self._for_all(tokens), token_presence=presence)

    def _pictures(self, images: Tensor) -> Reconstruction:
        shown = self._for_all(images)
        rows = shown.flatten(1).shape[1] == self.vocabulary
        return Reconstruction(
            images=shown, token_presence=(shown > 0.5).any(dim=0).flatten() if rows else None
        )

    def _for_all(self, rows: Tensor) -> Tensor:
        if len(rows) == 1:
            return rows.expand(self.num_examples, *rows.shape[1:])
        return rows[: self.num_examples]
