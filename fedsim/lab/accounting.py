"""The differential privacy that a run promises: of each example, and of each client as a whole."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedsim.core.gaussian_privacy import epsilon_of
from fedsim.core.interfaces import Defense
from fedsim.storage.runfolder import RunFolder

if TYPE_CHECKING:
    from fedsim.lab.experiment import Experiment

DELTA = Defense.delta  # of a client's epsilon; an example's has its defense's own


def budgets(experiment: "Experiment", folder: RunFolder) -> dict[str, float]:
    """Return epsilon of the examples and of the clients, as far as either is promised."""
    if {"loss", "class_counts"} & set(experiment.federation.disclose):  # in the clear, beside what is private
        return {}
    found = {"epsilon": _of_examples(experiment, folder), "client_epsilon": _of_clients(experiment)}
    return {name: value for name, value in found.items() if value is not None}


def _of_examples(experiment: "Experiment", folder: RunFolder) -> float | None:
    """Return what is promised to the examples of the client with the fewest.

    Poisson batches have the amplification that accountants compute. Those without replacement are disjoint
    within an epoch, so an example counts once an epoch, unamplified. Of others nothing is promised.
    """
    rules, sizes = experiment.federation, folder.share_sizes()
    if not sizes or rules.labels != "natural" or rules.sampling == "with_replacement":
        return None
    fewest, steps, replaced = min(sizes), rules.rounds * rules.local_steps, rules.sampling != "poisson"
    rate = min(1.0, rules.batch_size / fewest)
    if replaced:
        rate, steps = 1.0, math.ceil(steps / (fewest // min(rules.batch_size, fewest)))
    promised = [
        defense.epsilon(sample_rate=rate, steps=steps, replaced=replaced) for defense in experiment.defenses
    ]
    return min((epsilon for epsilon in promised if epsilon is not None), default=None)


def _of_clients(experiment: "Experiment") -> float | None:
    """Return what is promised to a client that had as many other examples instead, and was asked most often.

    Its replies differ by at most twice their longest length, behind the noise of each round.
    """
    noise = noise_of_replies(experiment.defenses)
    if not noise or experiment.audit is not None:  # a proof shows data
        return None
    rules = experiment.federation
    asked = Counter(c for r in range(1, rules.rounds + 1) for c in rules.participants(experiment.seed, r))
    return epsilon_of(2 * math.sqrt(max(asked.values())) / noise, DELTA)


def noise_of_replies(defenses: Sequence[Defense]) -> float:
    """Return the deviation of Gaussian noise on replies over their longest length; 0: nothing is promised."""
    if any(defense.inspects for defense in defenses):  # whether it refuses depends on the data
        return 0.0
    longest: float | None = None
    for defense in defenses:
        if longest is not None and defense.gaussian:
            return defense.gaussian / longest  # what comes behind the noise takes nothing back
        if type(defense).on_reply is not Defense.on_reply:
            longest = defense.longest
    return 0.0
