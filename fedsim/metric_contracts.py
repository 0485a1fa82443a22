"""What fedsim asks of every metric, whichever inputs it scores."""

import dataclasses
import math
from typing import Any

import torch

from fedsim.api.choose import dataset
from fedsim.contracts import expect
from fedsim.core.inputs import Tokens
from fedsim.core.interfaces import Metric
from fedsim.core.randomness import generator
from fedsim.core.types import Reconstruction, Truth
from fedsim.data.blind_batches import Rules
from fedsim.data.images import Dataset
from fedsim.data.texts import text_data
from fedsim.lab.scoring import blind_prior
from fedsim.metrics.baselines import scored


def check_metric(metric: Metric, name: str | None = None) -> None:
    """Score right, blind, surplus and empty guesses: what is right is best, what is more is not better.

    name: under which it scores.
    """
    expect(isinstance(metric, Metric), f"a Metric, got {type(metric).__name__}")
    for data in map(small_set, ("image", "tokens", "row")):
        if _check_metric_on(metric, name, data):
            return
    raise AssertionError("expected a score of a guess that claims everything")


def small_set(kind: str) -> Dataset:
    """Return a small data set of images, tokens, tokens to be continued, or rows."""
    if kind == "row":
        return dataset("tabular", train_size=40, test_size=20)
    if kind in ("tokens", "continued"):
        lines = [
            f"{'abc'[n % 3]} said {'xyzuvw'[n % 6] * (1 + n % 4)} and {'pqrst'[n % 5]}" for n in range(60)
        ]
        return text_data(
            lines,
            [n % 7 for n in range(60)],
            classes=7,
            length=8,
            vocabulary=60,
            goal="next" if kind == "continued" else "class",
            test=20,
            source="a test",
        )
    return dataset("synthetic", shape=[1, 32, 32], num_classes=3, train_size=40, test_size=20)


def _check_metric_on(metric: Metric, name: str | None, data: Dataset) -> bool:
    """Check a metric on a kind of inputs; False: it does not score them."""
    images, labels = data.train.batch(torch.arange(4)), torch.tensor([0, 2, 0, 0])  # unlike a blind guess
    rows, form = torch.rand(4, 3, generator=generator(0)), data.task.inputs
    truth = Truth(
        round=1, client=0, images=images, labels=labels, inputs=form, embeddings=rows, probabilities=rows
    )
    means = torch.stack([rows[labels == c].mean(dim=0) if c in labels else rows[0] for c in range(3)])
    present = (images > 0.5).any(dim=0).flatten()
    if isinstance(form, Tokens):
        present = torch.zeros(data.task.num_tokens, dtype=torch.bool)
        present[images] = True
    right = Reconstruction(
        images=None if isinstance(form, Tokens) else images,
        tokens=images if isinstance(form, Tokens) else None,
        token_presence=present if form is not None else None,
        labels=labels,
        class_counts=labels.bincount(minlength=3),
        embeddings=means,
        probabilities=means,
        certified=torch.ones(4, dtype=torch.bool),
    )
    prior = dataclasses.replace(
        blind_prior(
            truth, rules=Rules(), frequencies=(1 / 3,) * 3, public=[data.test.batch(torch.arange(9))]
        ),
        embeddings=[torch.ones(3, 3)],
        probabilities=[torch.ones(3, 3)],
    )
    score = scored(metric, right, truth, prior)
    if score is None:  # one that wants embeddings example by example
        right = dataclasses.replace(right, embeddings=rows, embedding_layer="output")
        prior = dataclasses.replace(prior, embedding_layer="output")
        score = scored(metric, right, truth, prior)
    if score is None:
        return False
    expect(name is None or score.metric == name, f"a score named {name}, got {score.metric}")
    if score.baseline is None:
        raise AssertionError("expected a baseline: what a guess without the gradient gets")
    sign = 1 if metric.highest else -1
    words = f"the truth to score better than blind guesses, got {score.value} and {score.baseline}"
    expect(sign * score.value > sign * score.baseline, words)
    twice: dict[str, Any] = {key: torch.cat([row, row]) for key, row in _examples_of(right).items()}
    surplus = metric.score(dataclasses.replace(right, **twice), truth)
    better = surplus is not None and sign * surplus.value > sign * score.value
    expect(not better, "guesses beyond the number of examples not to pay")
    turned = {key: row.flip(0) for key, row in _examples_of(right).items()}
    again = metric.score(dataclasses.replace(right, **turned), truth)
    same = again is not None and math.isclose(again.value, score.value, rel_tol=1e-4, abs_tol=1e-6)
    expect(same, "a score that does not depend on the order of guesses")
    expect(metric.score(Reconstruction(), truth) is None, "None for a guess that claims nothing")
    return True


def _examples_of(guess: Reconstruction) -> dict[str, Any]:
    """Return what a guess says example by example."""
    names = ["images", "tokens", "labels", "certified", *(["embeddings"] if guess.embedding_layer else [])]
    return {name: told for name in names if (told := getattr(guess, name)) is not None}
