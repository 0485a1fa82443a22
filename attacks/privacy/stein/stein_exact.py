"""Whole batches to float precision from the last two linear layers: the exact form of the Stein attack.

What leaks: the images of the batch and their labels, or the features that enter the two layers.
Paper: none; Wang, Lee and Lei (AISTATS 2023) estimate moments of the output layer's gradient alone. Here the
    hidden layer's gradient gives the span of the inputs and the column that each of them leaves in it.
Assumes: the server chose the weights of both layers; the client sends the gradient of one step.
Fails: with fewer units than about four for each example, more examples than inputs, linear and quadratic
    activations, and gradients that were clipped before noise was added.

With W, b and A as in head.py the hidden gradient is G = S diag(lambda) X, S_ji = act'(w_j.x_i + b):
1. its row space is the span V of the batch: only B coordinates of each input are unknown;
2. regression of G V on Hermite polynomials of V^T w gives second and third moments, whose decomposition
   gives starts (Stein's lemma, inside the span);
3. each start is refined on its own until its column lies in the column space of G (membership.py);
4. what was found is projected out of moments and gradient, and the search goes on for the rest.
"""

import logging
import math
import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedsim.attacks.privacy import claims
from fedsim.attacks.privacy.interruptible import shown_after
from fedsim.attacks.privacy.labels.counts import OPEN, deal
from fedsim.attacks.privacy.least_squares import fit
from fedsim.attacks.privacy.matching.linear_layers import clear_rank
from fedsim.attacks.privacy.stein.batch import Batch
from fedsim.attacks.privacy.stein.head import (
    Form,
    Head,
    craft_head,
    denormalised,
    find_head,
    input_norm,
    read_head,
)
from fedsim.attacks.privacy.stein.quadrature import best_bias, slope_levels, slopes, strength
from fedsim.core import progress, settings
from fedsim.core.errors import FedsimError, in_words
from fedsim.core.interfaces import Attack
from fedsim.core.randomness import generator
from fedsim.core.types import Observation, Reconstruction, Task, Weights

log = logging.getLogger(__name__)
PATIENCE = 6  # rounds without a new input
SURE = 0.3  # residual up to which labels are claimed: noise is part of it


class SteinExact(Attack):
    """Exact batches from crafted last layers: span, moments for starts, then input by input."""

    def __init__(
        self,
        *,
        scale: float = 0.5,
        bias: float | None = None,
        labels: Attack | None = None,
        starts: int = 32,
        seconds: float | None = None,
        seed: int = 0,
    ) -> None:
        """Set the deviation of w.x for an input of expected size, and the bias (None: chosen by quadrature).

        labels: a label attack that says how many examples there are, where neither clients nor singular
        values do. starts: random ones of a round, after the moments' own. seconds: time budget of the search.
        """
        self.scale = settings.number("attack.scale", scale, above=0)
        self.bias = settings.optional(settings.number, "attack.bias", bias)
        self.labels = labels
        self.starts = settings.whole("attack.starts", starts)
        self.seconds = settings.seconds("attack.seconds", seconds)
        self.seed = seed

    def craft(self, model: nn.Module, task: Task, round: int, weights: Weights) -> Weights:
        """Send Gaussian units with one bias, and output weights that are alike for all units."""
        form = find_head(model, task)
        bias = self.bias
        if bias is None and slope_levels(form.act) is not None:
            bias = self.scale / 2  # two thirds of the units active: columns round best
        elif bias is None:
            bias = best_bias(form.act, (2, 3), scale=self.scale)
        _check(form, bias, self.scale)
        norm, random = input_norm(model, task, form, weights), generator(self.seed, "stein", round)
        return craft_head(form, weights, norm=norm, scale=self.scale, bias=bias, random=random)

    def check(self, model: nn.Module, task: Task) -> None:
        """Refuse a model without a hidden linear layer that the images enter."""
        find_head(model, task)

    def run(self, model: nn.Module, task: Task, observations: Sequence[Observation]) -> Reconstruction:
        """Recover the inputs of the hidden layer, and their labels."""
        observation = observations[-1]
        form = find_head(model, task)
        head = read_head(form, observation)
        norm = input_norm(model, task, form, observation.sent)
        _check(form, head.bias, norm * float(head.weight.square().mean().sqrt()))
        size = observation.num_examples or self._examples(model, task, observations, head)
        if form.takes_images:
            claims.expect_images(size, task)
        else:
            claims.expect_room(size * head.weight.shape[1], f"the features of {size} examples")
        batch = Batch.of(head, form, size, norm)
        random = generator(self.seed, "stein search", observation.round, observation.client)
        return shown_after(
            lambda: self._search(batch, random),
            batch,
            lambda: _reconstruction(task, form, head, batch, size, observation.num_examples is not None),
            nothing=f"no input of layer {form.hidden!r} was found, from {len(head.weight)} units. "
            "Remedy: a larger model.width, smaller batches, or weaker defenses.",
        )

    def _examples(self, model: nn.Module, task: Task, observations: Sequence[Observation], head: Head) -> int:
        """Return the number of examples: singular values show it, or the labels' attack."""
        if (rank := clear_rank(head.weight_gradient.double())) is not None:
            return rank
        if self.labels is not None:
            try:
                counts = self.labels.run(model, task, observations).class_counts
            except FedsimError as error:
                log.warning("attack.labels: %s", in_words(error))
            else:
                if counts is not None and int(counts.sum()):
                    return int(counts.sum())
        raise FedsimError(
            "neither the client nor the gradient's singular values say how many examples there are. "
            "Remedy: add num_examples to federation.disclose, or a label attack in attack.labels."
        )

    def _search(self, batch: Batch, random: torch.Generator) -> None:
        idle, deadline = 0, time.perf_counter() + self.seconds
        with progress.bar("inputs", batch.size) as advance:
            while idle < PATIENCE:
                if len(batch.columns) == batch.size and not batch.reject_mixtures():
                    break
                if time.perf_counter() > deadline:
                    break
                starts = self.starts if batch.kinked or idle else 0
                idle = 0 if batch.search(starts, random, batch.tolerance) else idle + 1
                advance(len(batch.columns))
        if missing := batch.size - len(batch.columns):
            log.warning("%d of %d inputs are no more than guesses", missing, batch.size)
            batch.guessed = True
            batch.search(self.starts + batch.size, random, math.inf)
        batch.finish()


def _check(form: Form, bias: float, scale: float) -> None:
    """Refuse an activation that shows no more than combinations of inputs."""
    levels = slope_levels(form.act)
    if levels is not None and levels[0] == levels[1]:
        raise FedsimError(
            "a linear activation: the gradient holds one linear combination of the inputs, nothing else. "
            "Remedy: another model.activation."
        )
    if all(strength(form.act, order, bias=bias, scale=scale) < 1e-6 for order in (3, 4, 5, 6)):
        raise FedsimError(
            "the activation is quadratic where the units are: the gradient shows the span of the inputs, "
            "nothing more. Remedy: another model.activation, attack.bias or attack.scale."
        )


def _reconstruction(
    task: Task, form: Form, head: Head, batch: Batch, size: int, disclosed: bool
) -> Reconstruction:
    """Say what was found: images with their labels, or features; and how well it explains the gradient."""
    inputs = batch.inputs() @ batch.basis * batch.norm
    raw = label_shares(form, head, inputs, size)
    if not bool((head.output_gradient != 0).any(1).all()):  # classes that a sparsifying client left out
        raw = shares_of_errors(form, head, inputs, batch.errors() * batch.scale, size)
    counts = whole_shares(raw, size)
    residual = unexplained(form, head, inputs, counts)
    sure = not batch.guessed and residual < SURE and float((raw - counts).abs().max()) < 0.3
    found, classes = counts.nonzero(as_tuple=True)
    copies = counts[found, classes]
    inputs, labels = inputs[found].repeat_interleave(copies, dim=0), classes.repeat_interleave(copies)
    total = labels.bincount(minlength=task.num_classes)
    return Reconstruction(
        images=denormalised(task, inputs) if form.takes_images else None,
        labels=labels if form.takes_images and sure else None,
        embeddings=None if form.takes_images else inputs.float(),
        embedding_layer=None if form.takes_images else form.hidden,
        # A gradient is a mean: a batch and the same batch twice cannot be told apart.
        class_counts=total if sure and disclosed else None,
        class_presence=total > 0 if sure else None,
        residual=residual,
    )


def label_shares(form: Form, head: Head, inputs: Tensor, size: int) -> Tensor:
    """Return how often each input is in the batch with each label: (n, C), whole numbers but for noise.

    dL/dA = R^T act(W x + b) is linear in the errors R_ic = (k_i p_ic - n_ic) / B; p is known, and
    k_i = sum_c n_ic, where some class has n_ic = 0.
    """
    values, chances = _forward(form, head, inputs)
    errors = torch.zeros_like(chances)
    for number, gradient in enumerate(head.output_gradient.double()):
        seen = gradient != 0
        if int(seen.sum()) >= 2 * len(inputs):
            errors[:, number] = fit(values[:, seen].T, gradient[seen, None])[:, 0]
    often = (size * errors / chances).amax(1, keepdim=True)
    shares = (often * chances - size * errors).clamp(min=0)
    total = float(shares.sum())  # less than B where the gradient was clipped
    return shares * (size / total) if 0 < total < math.inf else torch.full_like(shares, 1 / shares.shape[1])


def shares_of_errors(form: Form, head: Head, inputs: Tensor, errors: Tensor, size: int) -> Tensor:
    """Return the same from lambda_i = k (p_i.alpha - alpha_c) / B alone, every input with one label."""
    _, chances = _forward(form, head, inputs)
    claims.expect_room(chances.numel() * size, f"{len(inputs)} inputs up to {size} times")
    often = torch.arange(1, size + 1, dtype=torch.float64)
    given = (chances @ head.levels)[:, None] - head.levels  # (n, C)
    gaps = (given[:, :, None] * often - size * errors[:, None, None]).abs()
    best = (gaps + 1e-6 * gaps.mean() * often).flatten(1).argmin(1)
    shares = torch.zeros_like(chances)
    shares[torch.arange(len(inputs)), best // size] = often[best % size]
    return shares


def whole_shares(shares: Tensor, size: int) -> Tensor:
    """Return whole numbers that add up to the batch, near the shares: at least one for every input."""
    counts = torch.zeros_like(shares, dtype=torch.int64)
    counts[torch.arange(len(shares)), shares.argmax(1)] = 1
    if size <= len(shares):
        return counts
    after = torch.arange(OPEN)

    def following(given: Tensor) -> Tensor:
        return (counts.flatten() + given)[:, None] + after - shares.flatten()[:, None]

    return counts + deal((counts - shares).flatten(), size - len(shares), following).view_as(counts)


def unexplained(form: Form, head: Head, inputs: Tensor, counts: Tensor) -> float:
    """Return the relative part of what was received that these inputs and labels do not give, up to scale."""
    values, chances = _forward(form, head, inputs)
    distances = inputs @ head.weight.double().T + head.bias
    first, _ = slopes(form.act, distances)
    errors = (counts.sum(1, keepdim=True) * chances - counts) / counts.sum()  # R
    through = (errors @ head.levels)[:, None] * first  # (n, m)
    pairs = [
        (head.weight_gradient, through.T @ inputs),
        (head.bias_gradient, through.sum(0)),
        (head.output_gradient, errors.T @ values),
    ]
    if slope_levels(form.act) is not None:  # at the kink itself, rounding decides
        clear = (distances.abs() > 1e-4 * distances.abs().mean()).all(0)
        pairs = [(pairs[0][0][clear], pairs[0][1][clear]), (pairs[1][0][clear], pairs[1][1][clear]), pairs[2]]
    worst = 0.0
    for received, given in pairs:
        received, given = received.double(), given * (received != 0)
        size = float(given.square().sum())
        factor = float((received * given).sum()) / size if size > 0 else 0.0  # a client may have clipped
        worst = max(worst, float((received - factor * given).norm() / received.norm().clamp(min=1e-300)))
    return worst


def _forward(form: Form, head: Head, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return what the hidden layer gives (n, m), and the softmax (n, C)."""
    values = form.act(inputs @ head.weight.double().T + head.bias)
    return values, torch.softmax(values.sum(1, keepdim=True) * head.levels, dim=1)
