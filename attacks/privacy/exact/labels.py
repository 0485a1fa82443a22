"""The counts of every class by the strongest means for what was observed, with what is certain of them.

What leaks: how many examples each class has, and for each class the fewest and the most there can be.
Paper: none; chooses between this laboratory's exact attacks and label restoration (Ma et al., ICLR 2023).
Assumes: softmax cross-entropy, a linear last layer with a bias.
Fails: as the one that it chose; between the bounds of a count nothing is certain.

The rule, first that applies: (1) where the bounds n_j >= -K g_j add up to K, they are the counts; (2)
head_peeling, where the batch has at most half as many examples as there are classes; (3) peeling, where two
linear layers lead up to the logits and the first has twice as many units as examples; (4) `otherwise`, whose
counts are moved into the bounds. An attack that does not find every example, or certifies less than half of
them, makes room for the next; but where nothing beside float32's rounding is in the way, labels that peeling
reads are told without certificates, and those of examples that leave nothing are not told.
"""

import dataclasses
import logging
import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedsim.attacks.privacy import claims
from fedsim.attacks.privacy.exact.certificates import noisy_spaces
from fedsim.attacks.privacy.exact.counting import at_least
from fedsim.attacks.privacy.exact.head_peeling import HeadPeeling
from fedsim.attacks.privacy.exact.peeling import Peeling
from fedsim.attacks.privacy.labels.last_layer import last_layer
from fedsim.attacks.privacy.matching.linear_layers import linear_chain
from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Attack
from fedsim.core.types import Observation, Reconstruction, Task
from fedsim.models.last_linear import last_linear_name

MOSTLY = 0.5  # share of examples that must be certified: behind noise, exact attacks err where others do not
ROUNDED = 1e-6  # of the largest singular value: more than float32 leaves where there are no examples
log = logging.getLogger(__name__)


class Labels(Attack):
    """Class counts by the strongest attack for what was observed, each with its bounds."""

    def __init__(self, *, otherwise: Attack, seconds: float | None = None, seed: int = 0) -> None:
        """Set the attack for batches that nothing exact reaches, and the time of each exact one."""
        self.otherwise = otherwise
        self.exact = (HeadPeeling(seconds=seconds, seed=seed), Peeling(seconds=seconds, seed=seed))

    def check(self, model: nn.Module, task: Task) -> None:
        """Refuse a model that does not end in a linear layer with a bias."""
        last_linear_name(model, task.input_shape)

    def run(self, model: nn.Module, task: Task, observations: Sequence[Observation]) -> Reconstruction:
        """Restore the counts by the first means that accounts for every example."""
        started, observation = time.perf_counter(), claims.checked(observations[-1])
        bounds = count_bounds(model, task, observation)
        guess = self._chosen(model, task, observations, bounds)
        return dataclasses.replace(guess, seconds=time.perf_counter() - started)

    def _chosen(
        self, model: nn.Module, task: Task, observations: Sequence[Observation], bounds: Tensor | None
    ) -> Reconstruction:
        if bounds is not None and bool((bounds[0] == bounds[1]).all()):
            log.info("the bias gradient alone bounds every count")
            return _counted(bounds[0], bounds)
        size = observations[-1].num_examples
        for attack in self.exact:
            try:
                attack.check(model, task)
                guess = attack.run(model, task, observations)
            except FedsimError as error:
                log.info("%s: %s", type(attack).__name__, error)
                continue
            if guess.count_bounds is not None and bounds is not None:
                bounds = narrower(bounds, guess.count_bounds)
            sure = guess.certified is not None and float(guess.certified.float().mean()) >= MOSTLY
            counted = guess.class_counts is not None and int(guess.class_counts.sum()) == (size or -1)
            if sure and counted and guess.class_counts is not None:
                known = guess.count_bounds
                certain = torch.stack([guess.class_counts] * 2) if known is None else known
                return _counted(guess.class_counts, certain)
            if bounds is not None and (seen := _seen(model, task, observations[-1], guess)) is not None:
                return _counted(seen.clamp(min=bounds[0], max=bounds[1]), bounds)
        guess = self.otherwise.run(model, task, observations)
        if guess.class_counts is None or bounds is None:
            return guess
        return _counted(within(guess.class_counts, bounds), bounds)


def count_bounds(model: nn.Module, task: Task, observation: Observation) -> Tensor | None:
    """Return the fewest and the most examples of each class (2, C) that a mean gradient admits.

    K g_j = sum p_j - n_j with no p_j below zero bounds n_j from below, and what the others leave from above.
    None: of several local steps, of an undisclosed batch size, or behind a defense.
    """
    several = observation.kind == "update" and (observation.local_steps or 1) > 1
    if several or observation.num_examples is None or observation.defense is not None:
        return None
    size = observation.num_examples
    layer = last_layer(model, task, observation)
    whole = torch.cat([layer.weight_gradient, layer.bias_gradient[:, None]], dim=1)
    noise = noisy_spaces(whole, size)[0].noise if size < min(whole.shape) - 1 else 0.0
    fewest = at_least(size * layer.bias_gradient, size, size * noise)
    return torch.stack([fewest, fewest + size - int(fewest.sum())])


def narrower(one: Tensor, other: Tensor) -> Tensor:
    """Return what two bounds say together; where they contradict each other, the first alone counts."""
    both = torch.stack([torch.maximum(one[0], other[0]), torch.minimum(one[1], other[1])])
    return both if bool((both[0] <= both[1]).all()) else one


def within(counts: Tensor, bounds: Tensor) -> Tensor:
    """Move counts into their bounds; where that changes their sum, those with most room make up for it."""
    moved = counts.clamp(min=bounds[0], max=bounds[1])
    for _ in range(len(counts)):
        over = int(moved.sum()) - int(counts.sum())
        room = moved - bounds[0] if over > 0 else bounds[1] - moved
        place = int(room.argmax())
        step = min(abs(over), int(room[place]))
        moved[place] -= step if over > 0 else -step
    return moved


def _seen(model: nn.Module, task: Task, observation: Observation, guess: Reconstruction) -> Tensor | None:
    """Count the labels of the inputs of a model's first linear layer, if most are told and only rounded."""
    first, size = linear_chain(model, task, observation)[0][0], observation.num_examples
    if guess.labels is None or size is None or guess.embedding_layer not in (None, first.name):
        return None
    values = torch.linalg.svdvals(first.augmented)
    rounded = size < len(values) and float(values[size]) < ROUNDED * float(values[0])
    few = len(guess.labels) < MOSTLY * size
    return guess.labels.bincount(minlength=task.num_classes) if rounded and not few else None


def _counted(counts: Tensor, bounds: Tensor) -> Reconstruction:
    return Reconstruction(class_counts=counts, class_presence=counts > 0, count_bounds=bounds)
