"""The rules of a federation: who takes part, what a client computes, what the server is told."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from fedsim.core.errors import FedsimError
from fedsim.core.randomness import generator
from fedsim.core.types import BatchNormMode, Kind

PARTITIONS = ("iid", "dirichlet", "pathological")  # of the images over clients: data/partition.py
LAYOUTS = ("natural", "uniform", "one_per_class", "repeated", "extreme")  # of labels: data/batches.py
DISCLOSABLE = ("num_examples", "learning_rate", "local_steps", "loss", "class_counts")


@dataclass(frozen=True, kw_only=True)
class Federation:
    """Settings of `conf/federation`; every value is checked here, before anything runs."""

    clients: int = 4
    rounds: int = 3
    participation: float = 1.0  # share of the clients in each round
    batch_size: int = 24
    mode: Literal["fedsgd", "fedavg"] = "fedsgd"  # reply: batch-mean gradient, or update after local steps
    local_steps: int = 1
    local_lr: float = 0.05
    server_lr: float | None = None  # None: 0.1 with fedsgd, 1 with fedavg
    partition: str = "iid"
    alpha: float = 0.5  # dirichlet
    classes_per_client: int = 2  # pathological
    sampling: Literal["without_replacement", "with_replacement"] = "without_replacement"
    labels: str = "natural"  # layout of a batch's labels
    batch_norm: BatchNormMode = "eval"  # statistics: running ones, or of the private batch (train)
    disclose: Sequence[str] = ("num_examples", "learning_rate", "local_steps")
    attacked_rounds: Sequence[int] | None = None  # None: all
    attacked_clients: Sequence[int] | None = None
    evaluate_every: int = 1  # rounds; 0: never
    target_accuracy: float | None = None  # report after how many rounds and seconds the model reached it
    timeout: float = 3600.0  # seconds that the server waits for a round's replies

    def __post_init__(self) -> None:
        for name in ("clients", "rounds", "batch_size", "local_steps", "classes_per_client"):
            self._expect(name, "a whole number of at least 1", _whole(getattr(self, name), 1))
        self._expect("evaluate_every", "a whole number of at least 0", _whole(self.evaluate_every, 0))
        self._expect("participation", "a share in (0, 1]", _positive(self.participation, 1))
        for name in ("local_lr", "alpha", "timeout"):
            self._expect(name, "a positive number", _positive(getattr(self, name)))
        target = self.target_accuracy
        self._expect("target_accuracy", "a share in (0, 1]", target is None or _positive(target, 1))
        self._expect("server_lr", "a positive number", self.server_lr is None or _positive(self.server_lr))
        self._expect("mode", "fedsgd or fedavg", self.mode in ("fedsgd", "fedavg"))
        self._expect("partition", "one of " + ", ".join(PARTITIONS), self.partition in PARTITIONS)
        samplings = ("without_replacement", "with_replacement")
        self._expect("sampling", " or ".join(samplings), self.sampling in samplings)
        self._expect("batch_norm", "eval or train", self.batch_norm in ("eval", "train"))
        self._expect("labels", "one of " + ", ".join(LAYOUTS), self.labels in LAYOUTS)
        self._expect("disclose", "some of " + ", ".join(DISCLOSABLE), _some_of(self.disclose, DISCLOSABLE))
        if self.mode == "fedsgd" and self.local_steps != 1:
            raise FedsimError(
                f"federation.local_steps={self.local_steps} with mode=fedsgd: a gradient reply is one step. "
                "Remedy: federation=fedavg."
            )
        for name, allowed in (
            ("attacked_rounds", range(1, self.rounds + 1)),
            ("attacked_clients", range(self.clients)),
        ):
            expected = f"a list of numbers from {allowed[0]} to {allowed[-1]}"
            self._expect(name, expected, _within(getattr(self, name), allowed))

    def _expect(self, name: str, expected: str, holds: bool) -> None:
        if not holds:
            raise FedsimError(f"federation.{name}: expected {expected}, got {getattr(self, name)!r}")

    @property
    def reply_kind(self) -> Kind:
        """What a client's reply is."""
        return "gradient" if self.mode == "fedsgd" else "update"

    @property
    def server_step(self) -> float:
        """By what the server multiplies the mean reply before adding it to what it sent."""
        if self.mode == "fedsgd":
            return -(self.server_lr or 0.1)
        return self.server_lr or 1.0

    def participants(self, seed: int, round: int) -> list[int]:
        """Return the clients of a round, in rising order."""
        number = max(1, round_half_up(self.participation * self.clients))
        order = torch.randperm(self.clients, generator=generator(seed, "participants", round))
        return sorted(int(client) for client in order[:number])

    def attacks(self, round: int, client: int) -> bool:
        """Say whether this client's reply in this round is kept for the attack."""
        rounds, clients = self.attacked_rounds, self.attacked_clients
        return (rounds is None or round in rounds) and (clients is None or client in clients)

    def evaluates(self, round: int) -> bool:
        """Say whether the global model is tested after this round (0: before training)."""
        every = self.evaluate_every
        return every > 0 and (round % every == 0 or round == self.rounds)


def round_half_up(value: float) -> int:
    """Round to the nearest whole number, halves up."""
    return int(value + 0.5)


def _whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _some_of(chosen: object, allowed: Sequence[str]) -> bool:
    return isinstance(chosen, list | tuple) and all(value in allowed for value in chosen)


def _positive(value: object, most: float = math.inf) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= most


def _within(chosen: object, allowed: range) -> bool:
    return chosen is None or (isinstance(chosen, list | tuple) and all(value in allowed for value in chosen))
