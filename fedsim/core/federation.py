"""The rules of a federation: who takes part, what a client computes, what the server is told."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch

from fedsim.core.errors import FedsimError
from fedsim.core.randomness import generator
from fedsim.core.settings import listed, number, one_of, optional, whole
from fedsim.core.types import BatchNormMode, Kind

PARTITIONS = ("iid", "dirichlet", "pathological")  # of the images over clients: data/partition.py
LAYOUTS = ("natural", "uniform", "one_per_class", "repeated", "extreme")  # of labels: data/batches.py
SAMPLINGS = ("without_replacement", "with_replacement", "poisson")  # of a batch: data/batches.py
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
    sampling: Literal["without_replacement", "with_replacement", "poisson"] = "without_replacement"
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
            whole(f"federation.{name}", getattr(self, name))
        whole("federation.evaluate_every", self.evaluate_every, 0)
        number("federation.participation", self.participation, above=0, most=1)
        number("federation.local_lr", self.local_lr, above=0)
        number("federation.alpha", self.alpha, above=0)
        number("federation.timeout", self.timeout, above=0, infinite=True)
        optional(number, "federation.target_accuracy", self.target_accuracy, above=0, most=1)
        optional(number, "federation.server_lr", self.server_lr, above=0)
        one_of("federation.mode", self.mode, ("fedsgd", "fedavg"))
        one_of("federation.partition", self.partition, PARTITIONS)
        one_of("federation.sampling", self.sampling, SAMPLINGS)
        if self.sampling == "poisson" and self.labels != "natural":
            raise FedsimError(
                f"federation.sampling=poisson draws whatever labels there are, got labels={self.labels}. "
                "Remedy: federation.labels=natural."
            )
        one_of("federation.batch_norm", self.batch_norm, ("eval", "train"))
        one_of("federation.labels", self.labels, LAYOUTS)
        disclosable = partial(one_of, allowed=DISCLOSABLE)
        listed("federation.disclose", self.disclose, "some of " + ", ".join(DISCLOSABLE), disclosable, 0)
        if self.mode == "fedsgd" and self.local_steps != 1:
            raise FedsimError(
                f"federation.local_steps={self.local_steps} with mode=fedsgd: a gradient reply is one step. "
                "Remedy: federation=fedavg."
            )
        for name, least, most in (("rounds", 1, self.rounds), ("clients", 0, self.clients - 1)):
            key, chosen = f"federation.attacked_{name}", getattr(self, f"attacked_{name}")
            known = partial(whole, least=least, most=most)
            optional(listed, key, chosen, f"a list of numbers from {least} to {most}", known, 0)

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
