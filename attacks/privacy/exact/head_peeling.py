"""Every example's features and label, exactly, from the last layer's gradient of any network.

What leaks: the label of every example, so the counts of all classes, and its features: what enters the last
    linear layer. Behind any network, trained or not.
Paper: none; the class means of iLRG (Ma et al., ICLR 2023) become single examples.
Assumes: softmax cross-entropy, a linear last layer with a bias, one gradient step; at most about half as many
    examples as classes, and as many features.
Fails: with more examples than that; on examples without loss, which leave nothing and are called unseen;
    behind noise that hides the smallest singular values.

[G | g] = D^T [F | 1] with the rows p - e_y of D: an example is a point f of the row space (K - 1 unknowns and
the label) whose error lies in the column space (C - K - 1 equations). Damped Gauss-Newton from the quotients
G_y / g_y finds it, helped by what features cannot be, negative, where the network says so. A found example's
error is projected out of the gradient, and the search goes on in a smaller space. Of those not found, K g_j =
sum p_j - n_j bounds the counts from below: where the bounds sum to what is missing, they are the counts. So
are they where examples and classes are too many for a search in memory: then no features are told.
"""

import dataclasses
import logging
import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedsim.attacks.privacy import claims
from fedsim.attacks.privacy.exact.certificates import noisy_spaces
from fedsim.attacks.privacy.exact.counting import at_least, nearest_counts
from fedsim.attacks.privacy.exact.head_peel import HeadPeel
from fedsim.attacks.privacy.exact.spaces import row_scales
from fedsim.attacks.privacy.interruptible import shown_after
from fedsim.attacks.privacy.matching.linear_layers import LinearLayer, linear_layer
from fedsim.core import progress, settings
from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Attack
from fedsim.core.randomness import generator
from fedsim.core.types import Observation, Reconstruction, Task
from fedsim.models.last_linear import last_linear_name, layer_inputs

log = logging.getLogger(__name__)
PATIENCE = 3  # rounds of starts without a new example before the search ends
FEW = 8  # examples left: starts are cheap
ACCOUNTED = 0.1  # of the smallest error: what all may leave of K g where their labels are certain
MISSING = 2  # examples without which the labels of the others are still the best account
DOUBTED = 4.0  # examples of unknown classes, added to those predicted before one that was not seen is guessed
PROBES = 32  # random images that show whether features can be negative


class HeadPeeling(Attack):
    """Exact labels and features of every example, from the last layer alone."""

    def __init__(self, *, starts: int = 2, seconds: float | None = None, seed: int = 0) -> None:
        """Set the starts of a round for each class."""
        self.starts = settings.whole("attack.starts", starts)
        self.seconds = settings.seconds("attack.seconds", seconds)
        self.seed = seed

    def check(self, model: nn.Module, task: Task) -> None:
        """Refuse a model that does not end in a linear layer with a bias."""
        last_linear_name(model, task.input_shape)

    def run(self, model: nn.Module, task: Task, observations: Sequence[Observation]) -> Reconstruction:
        """Recover labels and features, one example after another."""
        started, observation = time.perf_counter(), claims.checked(observations[-1])
        layer, size, different = head(model, task, observation)
        if (room := _room(layer)) < different:
            raise FedsimError(
                f"head_peeling: expected at most {room} different examples, for {len(layer.weight)} classes "
                f"and {layer.weight.shape[1]} features, got {different}. "
                "Remedy: attack=labels; smaller batches."
            )
        try:
            claims.expect_room(len(layer.weight) * different * (len(layer.weight) + different), "starts")
        except FedsimError:
            if (counted := _counted(layer, size, different)) is None:
                raise
            log.warning("too many examples and classes to look for features: counts alone")
            return dataclasses.replace(counted, seconds=time.perf_counter() - started)
        nonnegative = _nonnegative(model, task, observation, layer.name)
        scales, different = row_scales(layer.augmented, size, different, margin=True)
        peel = HeadPeel.of(layer, size, different, nonnegative=nonnegative, scales=scales[:, 0])
        return shown_after(
            lambda: self._search(peel, observation), peel, lambda: _shown(task, layer, peel), nothing=None
        )

    def _search(self, peel: HeadPeel, observation: Observation) -> None:
        random, idle = generator(self.seed, "head_peeling", observation.round, observation.client), 0
        deadline = time.perf_counter() + self.seconds
        with progress.bar("peeling", peel.different) as advance:
            while len(peel) < peel.different and idle < PATIENCE and time.perf_counter() < deadline:
                few = 4 if peel.different - len(peel) <= FEW else 1
                fresh = peel.search(self.starts * (1 + idle) * few, 0.5 * (1 + idle), random, sure=idle == 0)
                idle = 0 if fresh else idle + 1
                advance(len(peel))


def head(model: nn.Module, task: Task, observation: Observation) -> tuple[LinearLayer, int, int]:
    """Return the last layer with its mean gradient, the batch size, and how many examples differ."""
    factor = claims.gradient_factor(observation)
    if (observation.local_steps or 1) > 1 and observation.kind != "gradient":
        raise FedsimError(
            f"head_peeling reads one gradient step, and the client took {observation.local_steps}. "
            "Remedy: attack=fedavg_peeling for fully connected models; attack=labels."
        )
    layer = linear_layer(last_linear_name(model, task.input_shape), observation, None)
    layer = dataclasses.replace(
        layer, weight_gradient=layer.weight_gradient * factor, bias_gradient=layer.bias_gradient * factor
    )
    if not bool(layer.augmented.any()):
        raise FedsimError(
            "the last layer's gradient is zero: no example leaves anything in it. "
            "Remedy: distrust this client."
        )
    size = layer.examples(observation)
    return layer, size, layer.different(size)


def _room(layer: LinearLayer) -> int:
    """Return how many examples there may be: K - 1 unknowns for C - K - 1 equations, in so many features."""
    classes, features = layer.weight.shape
    return max(1, min((classes - 1) // 2, features))


def _counted(layer: LinearLayer, size: int, different: int) -> Reconstruction | None:
    """Return the counts where n_j >= -K g_j bounds all of them; None: where it does not."""
    noise = noisy_spaces(layer.augmented, different)[0].noise
    counts = at_least(size * layer.bias_gradient, size, size * noise)
    if int(counts.sum()) < size:
        return None
    return Reconstruction(
        class_counts=counts, class_presence=counts > 0, count_bounds=torch.stack([counts, counts])
    )


def _nonnegative(model: nn.Module, task: Task, observation: Observation, name: str) -> bool:
    """Say whether features are never below zero, as behind a ReLU: by random images."""
    images = torch.rand(PROBES, *task.input_shape, generator=torch.Generator().manual_seed(0))
    features, _ = layer_inputs(model, name, observation.sent, images)
    return bool((features >= 0).all())


def _shown(task: Task, layer: LinearLayer, peel: HeadPeel) -> Reconstruction:
    """Return the examples, the counts of what was seen, and the bounds of the rest."""
    peel.settle()
    counts = _counts(peel)
    fewest = counts if _accounted(peel) else peel.fewest()
    if unseen := peel.size - int(counts.sum()):
        log.warning("%d of %d examples were not seen: their labels are not certain", unseen, peel.size)
        counts = with_unseen(counts, peel.size * peel.biases, unseen)
    residuals = peel.residuals or [1.0]
    return Reconstruction(
        class_counts=counts,
        class_presence=counts > 0,
        count_bounds=torch.stack([fewest, fewest + peel.size - int(fewest.sum())]),
        labels=peel.labels.repeat_interleave(peel.copies),
        embeddings=_repeated(peel.near @ peel.basis[:, :-1], peel.copies).float(),
        embedding_layer=layer.name,
        certified=_repeated(peel.certified(), peel.copies),
        residual=max(residuals),
    )


def with_unseen(counts: Tensor, biases: Tensor, unseen: int) -> Tensor:
    """Add examples that were not seen to the counts where the model nearly always predicts the same class.

    One without loss has the label that the model predicts; K g + n, `biases` and counts, is what it predicts
    for the others. Where these are of many classes, nothing is added.
    """
    predicted = (biases + counts).clamp(min=0)
    likely = predicted.argmax()
    added = torch.zeros_like(counts)
    if 2 * predicted[likely] > predicted.sum() + DOUBTED:
        added[likely] = unseen
    return counts + added


def _accounted(peel: HeadPeel) -> bool:
    """Say whether all examples that leave something were found, and their errors sum to K g.

    What is left must be little beside every one of them: of small errors, K g alone tells nothing.
    """
    quietest = float(peel.errors.abs().amax(dim=1).min()) if len(peel) else 0.0
    return len(peel) == peel.different and float(peel.rest().abs().max()) < ACCOUNTED * quietest


def _counts(peel: HeadPeel) -> Tensor:
    """Return how many of each class were seen: by their labels, or where too few were found, by K g.

    Then n = sum p - K g, with the probabilities of the pooled input.
    """
    fewest = peel.fewest()
    seen = torch.zeros_like(fewest).index_add(0, peel.labels, peel.copies)
    if peel.different - len(peel) <= MISSING or peel.different < peel.size:
        return seen + peel.at_least() if int(seen.sum()) < peel.size else seen
    if int(torch.maximum(fewest, seen).sum()) <= peel.size:
        fewest = torch.maximum(fewest, seen)
    pooled = (peel.biases / peel.scales) @ peel.gradient / peel.biases.dot(peel.biases)
    chances = (peel.weight @ (pooled / pooled.dot(peel.basis[:, -1]))).softmax(dim=0)
    return nearest_counts(peel.size * (chances - peel.biases), fewest, peel.size)


def _repeated(rows: Tensor, copies: Tensor) -> Tensor:
    return rows.repeat_interleave(copies, dim=0)
