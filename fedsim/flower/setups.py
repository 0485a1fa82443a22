"""What the two sides of a federation work with."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedsim.core.federation import Federation
from fedsim.core.interfaces import Attack, Audit, Behaviour, Committed, Defense
from fedsim.core.training import Commitment
from fedsim.core.types import Fault, RoundResult, Task, Verdict, Weights
from fedsim.data.images import Images


@dataclass(frozen=True, kw_only=True, eq=False)
class ClientSetup:
    """What a client works with. One object serves all clients of a process."""

    model: nn.Module  # on its device
    train: Images
    shares: tuple[Tensor, ...]  # indices of the images that each client owns
    federation: Federation
    defenses: tuple[Defense, ...]
    behaviours: tuple[Behaviour, ...]  # of every client; empty: all are honest
    audit: Audit | None
    task: Task
    seed: int
    device: str
    threads: int

    @property
    def has_memory(self) -> bool:
        """Whether a client's reply depends on its earlier ones."""
        proves_lies = self.audit is not None and bool(self.behaviours)
        return proves_lies or any(defense.keeps_rest or defense.looks_back for defense in self.defenses)

    @property
    def masks(self) -> bool:
        """Whether replies leave with masks on."""
        return any(defense.masks for defense in self.defenses)

    def behaviour(self, client: int) -> Behaviour:
        """Return how a client behaves."""
        return self.behaviours[client] if self.behaviours else Behaviour()

    @functools.cached_property
    def committed(self) -> dict[int, Committed]:
        """What clients of this process have committed to, once it was asked for."""
        return {}

    @functools.cached_property
    def owners(self) -> Tensor:
        """The client that owns each image; -1: nobody."""
        owners = torch.full((len(self.train.labels),), -1)
        for client, share in enumerate(self.shares):
            owners[share] = client
        return owners


@dataclass(frozen=True, kw_only=True, eq=False)
class ServerSetup:
    """What the server works with, and where its findings go as they come."""

    model: nn.Module
    task: Task
    test: Images
    federation: Federation
    attack: Attack
    audit: Audit | None
    defenses: tuple[Defense, ...]  # that clients apply by the rules; an audit does them again
    sums_replies: bool  # secure aggregation: only the sum over a round's clients can be observed
    masks: bool  # by masks that cancel
    first_scale: float  # the largest weight of the first model
    seed: int
    device: str
    threads: int
    keep_observation: Callable[..., None]  # an Observation; own_sent: of a client that got weights of its own
    keep_fault: Callable[[Fault], None]
    keep_round: Callable[[RoundResult], None]
    keep_verdict: Callable[[Verdict], None]
    keep_proof: Callable[[int, int, bytes], None]  # of a round and a client, as it came in
    keep_commitment: Callable[[int, int, Commitment], None]  # of a round and a client
    keep_weights: Callable[[Weights, int], None]
    commitments: dict[int, Commitment]  # of clients, from rounds before
    rejections: dict[int, int]  # of clients, in rounds before
    done: int = 0  # rounds that were played before; the model holds the weights after them
