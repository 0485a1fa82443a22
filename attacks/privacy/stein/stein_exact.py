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

import dataclasses
import logging
import math
import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from attacks.privacy.least_squares import fit
from attacks.privacy.matching import checks
from attacks.privacy.stein.batch import ROUNDING, Batch
from attacks.privacy.stein.head import Form, Head, craft_head, denormalised, find_head, input_norm, read_head
from attacks.privacy.stein.quadrature import best_bias, slope_levels, strength
from fedsim import progress
from fedsim.errors import FedsimError, in_words
from fedsim.interfaces import Attack
from fedsim.randomness import generator
from fedsim.types import Interrupted, Observation, Reconstruction, Task, Weights

log = logging.getLogger(__name__)
CLEAR_GAP = 30.0  # between singular values of examples and those of noise
PATIENCE = 6  # rounds without a new input


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
        values do. starts: random ones of a round, after the moments' own. seconds: time budget of a batch.
        """
        self.scale = checks.number("scale", scale)
        self.bias = None if bias is None else checks.finite("bias", bias)
        self.labels = labels
        self.starts = checks.whole("starts", starts)
        self.seconds = checks.seconds("seconds", seconds)
        self.seed = seed

    def craft(self, model: nn.Module, task: Task, round: int, weights: Weights) -> Weights:
        """Send Gaussian units with one bias, and output weights that are alike for all units."""
        form = find_head(model, task)
        bias = self.bias
        if bias is None and slope_levels(form.act) is not None:
            bias = self.scale / 2  # two thirds of the units active: columns round best
        elif bias is None:
            bias = best_bias(form.act, (2, 3), scale=self.scale)
        self._check(form, bias)
        norm, random = input_norm(model, task, form, weights), generator(self.seed, "stein", round)
        return craft_head(form, weights, norm=norm, scale=self.scale, bias=bias, random=random)

    def run(self, model: nn.Module, task: Task, observations: Sequence[Observation]) -> Reconstruction:
        """Recover the inputs of the hidden layer, and their labels."""
        started, observation = time.perf_counter(), observations[-1]
        form = find_head(model, task)
        head = read_head(form, observation)
        self._check(form, head.bias)
        size = observation.num_examples or self._examples(model, task, observations, head)
        batch = Batch.of(head, form, size, self.scale)
        random = generator(self.seed, "stein search", observation.round, observation.client)
        interrupted = False
        try:
            self._search(batch, random, started)
        except KeyboardInterrupt:
            interrupted = True
        if not len(batch.columns):
            if interrupted:
                raise KeyboardInterrupt
            raise FedsimError(
                f"no input of layer {form.hidden!r} was found, from {len(head.weight)} units. "
                "Remedy: a larger model.width, smaller batches, or weaker defences."
            )
        guess = _reconstruction(task, form, head, batch, size)
        guess = dataclasses.replace(guess, seconds=time.perf_counter() - started)
        if interrupted:
            raise Interrupted(guess)
        return guess

    def _check(self, form: Form, bias: float) -> None:
        """Refuse an activation that shows no more than combinations of inputs."""
        levels = slope_levels(form.act)
        if levels is not None and levels[0] == levels[1]:
            raise FedsimError(
                "a linear activation: the gradient holds one linear combination of the inputs, nothing else. "
                "Remedy: another model.activation."
            )
        if all(strength(form.act, order, bias=bias, scale=self.scale) < 1e-6 for order in (3, 4, 5, 6)):
            raise FedsimError(
                "a quadratic activation: the gradient shows the span of the inputs, not the inputs. "
                "Remedy: another model.activation."
            )

    def _examples(self, model: nn.Module, task: Task, observations: Sequence[Observation], head: Head) -> int:
        """Return the number of examples: singular values show it, or the labels' attack."""
        values = torch.linalg.svdvals(head.weight_gradient.double())
        gaps = values[:-1] / values[1:].clamp(min=max(float(values[0]) * ROUNDING, 1e-300))
        if float(gaps.max()) > CLEAR_GAP:
            return int(gaps.argmax()) + 1
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

    def _search(self, batch: Batch, random: torch.Generator, started: float) -> None:
        idle = 0
        with progress.bar("inputs", batch.size) as advance:
            while idle < PATIENCE:
                if len(batch.columns) == batch.size and not batch.reject_mixtures():
                    break
                if time.perf_counter() > started + self.seconds:
                    break
                starts = self.starts if batch.kinked or idle else 0
                idle = 0 if batch.search(starts, random, batch.tolerance) else idle + 1
                advance(len(batch.columns))
        if missing := batch.size - len(batch.columns):
            log.warning("%d of %d inputs are no more than guesses", missing, batch.size)
            batch.guessed = True
            batch.search(self.starts + batch.size, random, math.inf)
        batch.finish()


def _reconstruction(task: Task, form: Form, head: Head, batch: Batch, size: int) -> Reconstruction:
    """Say what was found: images with their labels, or features; and how well it explains the gradient."""
    inputs = batch.inputs() @ batch.basis * batch.norm
    received = head.weight_gradient.double()[batch.heard]
    gap = (batch.columns.T @ (batch.sources() @ batch.basis) - received) * (received != 0)
    residual = max(float(gap.norm() / received.norm()), float(batch.contradictions().max()))
    labels, copies = read_labels(form, head, inputs, size)
    whole = not batch.guessed and int(copies.sum()) == size
    inputs, labels = inputs.repeat_interleave(copies, dim=0), labels.repeat_interleave(copies)
    counts = labels.bincount(minlength=task.num_classes) if whole else None
    return Reconstruction(
        images=denormalised(task, inputs) if form.takes_images else None,
        labels=labels if form.takes_images else None,
        embeddings=None if form.takes_images else inputs.float(),
        embedding_layer=None if form.takes_images else form.hidden,
        class_counts=counts,
        class_presence=None if counts is None else counts > 0,
        confidence=residual,
    )


def read_labels(form: Form, head: Head, inputs: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return each input's label, and how often it is in the batch, from the output layer's gradient.

    dL/dA = R^T act(W x + b) is linear in the errors R_ic = copies_i (p_ic - y_ic) / B, and p is known.
    """
    values = form.act(inputs @ head.weight.double().T + head.bias)  # (n, m)
    seen = (head.output_gradient != 0).all(0)
    known = seen if int(seen.sum()) >= 2 * len(inputs) else torch.ones_like(seen)
    errors = fit(values[:, known].T, head.output_gradient.double()[:, known].T)
    labels = errors.argmin(dim=1)
    chances = torch.softmax(values.sum(1, keepdim=True) * head.levels, dim=1)
    mine = labels[:, None]
    copies = size * errors.gather(1, mine) / (chances.gather(1, mine) - 1)
    return labels, copies[:, 0].round().long().clamp(1, size)
