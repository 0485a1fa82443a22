"""Class counts of batches that nobody has seen, drawn by the federation's rules from public frequencies."""

import functools
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedsim.core.errors import FedsimError
from fedsim.core.federation import Federation
from fedsim.core.randomness import derived_seed, generator
from fedsim.data.batches import layout_counts

DRAWS = 500  # batches


@dataclass(frozen=True)
class Rules:
    """What decides how many examples of each class a batch holds."""

    partition: str = "iid"
    alpha: float = 1.0
    clients: int = 1
    classes_per_client: int = 2
    labels: str = "natural"
    steps: int = 1


def rules_of(federation: Federation) -> Rules:
    """Return those of a federation, which everybody in it knows."""
    return Rules(
        partition=federation.partition,
        alpha=federation.alpha,
        clients=federation.clients,
        classes_per_client=federation.classes_per_client,
        labels=federation.labels,
        steps=federation.local_steps,
    )


@functools.lru_cache(maxsize=64)
def blind_batches(
    rules: Rules, frequencies: tuple[float, ...], num_examples: int, clients: int = 1
) -> Tensor:
    """Return the class counts (DRAWS, C) of batches that the rules would draw.

    frequencies: of the classes in public data. clients: whose examples came as one sum.
    """
    random = np.random.default_rng(derived_seed(0, "blind batches"))
    counts = np.zeros((DRAWS, len(frequencies)), dtype=np.int64)
    for size in _parts(num_examples, clients):
        shares = _client_shares(rules, np.asarray(frequencies), random)
        if rules.labels == "natural":
            counts += random.multinomial(size, shares)
        else:
            counts += _laid_out(rules, shares, size)
    return torch.from_numpy(counts)


def _client_shares(rules: Rules, frequencies: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Return the class shares (DRAWS, C) of clients as the partition would make them."""
    classes = len(frequencies)
    weights = np.ones((DRAWS, classes))
    if rules.partition == "dirichlet" and rules.clients > 1:
        # Each class is dealt to all clients by a symmetric Dirichlet draw: one client's part of it is a beta.
        weights = random.beta(rules.alpha, rules.alpha * (rules.clients - 1), (DRAWS, classes))
    elif rules.partition == "pathological":
        ranks = random.random((DRAWS, classes)).argsort(axis=1).argsort(axis=1)
        weights = (ranks < rules.classes_per_client).astype(float)
    shares = weights * frequencies
    empty = np.flatnonzero(shares.sum(axis=1) == 0)  # underflow: such a client has one class
    shares[empty, random.integers(classes, size=len(empty))] = 1.0
    normalised: np.ndarray = shares / shares.sum(axis=1, keepdims=True)
    return normalised


def _laid_out(rules: Rules, shares: np.ndarray, size: int) -> np.ndarray:
    """Return the counts of each step's batch with a fixed layout, over the classes that the client owns."""
    random, counts = generator(0, "blind layouts"), np.zeros(shares.shape, dtype=np.int64)
    for row, owned in zip(counts, shares, strict=True):
        labels = torch.from_numpy(np.flatnonzero(owned))
        for part in _parts(size, rules.steps):
            try:
                wanted = layout_counts(labels, part, rules.labels, random)
            except FedsimError:  # these sizes do not fit the layout, so the batch cannot have had it
                wanted = layout_counts(labels, part, "uniform", random)
            for label, number in wanted.items():
                row[label] += number
    return counts


def _parts(total: int, number: int) -> list[int]:
    return [total // number + (part < total % number) for part in range(number)]
