"""Texts as data: lines with labels cut into word pieces, to classify or to continue."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsim.core.errors import FedsimError
from fedsim.core.settings import one_of, whole
from fedsim.core.types import Task
from fedsim.data.images import Dataset
from fedsim.data.wordpieces import WordPieces, continuations, learn, sequences

GOALS = ("class", "next")


@dataclass(frozen=True, eq=False)
class ArrayTokens:
    """Texts held in memory as numbers of tokens."""

    tokens: Tensor  # int32 (N, length): half of what leaves here
    labels: Tensor

    def batch(self, indices: Tensor) -> Tensor:
        """Read the texts at these indices: int64 (N, length)."""
        return self.tokens[indices].long()


def text_data(
    lines: Sequence[str],
    labels: Sequence[int],
    *,
    classes: int,
    length: int,
    vocabulary: int | tuple[str, ...],
    goal: str,
    test: int,
    source: str,
) -> Dataset:
    """Return the learning problem of texts; the last `test` of them are for testing, and public.

    vocabulary: pieces, or how many to learn from the texts. goal: tell their class, or the next token.
    """
    one_of("data.goal", goal, GOALS)
    whole("data.length", length, 4)
    if not 0 < test < len(lines):
        raise FedsimError(
            f"{source}: expected more than {test} texts, which are for testing, got {len(lines)}"
        )
    pieces = WordPieces(learn(lines, vocabulary) if isinstance(vocabulary, int) else vocabulary)
    form, cut = pieces.form(length, continued=goal == "next"), [pieces.cut(line) for line in lines]
    if goal == "next":
        inputs, targets = continuations(cut, form)
    else:
        inputs, targets = sequences(cut, form), torch.tensor(labels)
    if goal == "class" and classes < 2:
        raise FedsimError(
            f"{source}: expected texts of at least 2 classes, got {classes}. "
            "Remedy: data.goal=next, or a label and a tab before every line."
        )
    number = len(pieces.vocabulary) if goal == "next" else classes
    task = Task(input_shape=form.shape, num_classes=number, inputs=form)
    train, rest = (
        ArrayTokens(tokens=inputs[part].to(torch.int32), labels=targets[part])
        for part in (slice(None, -test), slice(-test, None))
    )
    return Dataset(task=task, train=train, test=rest)


def labelled_lines(content: str) -> tuple[list[str], list[int], int]:
    """Return the texts of a file, a line each, their classes by what stands before a tab, and how many."""
    found = [line.partition("\t")[::2] for line in content.splitlines() if line.strip()]
    if not all(text for _, text in found):
        return [" ".join(filter(None, pair)) for pair in found], [0] * len(found), 1
    names = sorted({name for name, _ in found})
    return [text for _, text in found], [names.index(name) for name, _ in found], len(names)
