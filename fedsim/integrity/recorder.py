"""A recorder for any torch loop: it hands out the batches, and keeps what proves that the loop was run.

    def train(record):
        model, loader = Net(), DataLoader(data, batch_size=64)
        optimizer = torch.optim.Adam(model.parameters())
        for images, labels in record(loader, model, optimizer, steps=1000, every=50):
            optimizer.zero_grad()
            ...

Nothing else of a loop changes. Who proves runs it from end to end (prove_loop.py); who verifies runs the
same loop on the intervals between some checkpoints, and knows no more of it than its state (verify_loop.py).
Paper: Jia et al., Proof-of-Learning: Definitions and Practice (S&P 2021), algorithm 1.
"""

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from fedsim.core.errors import FedsimError
from fedsim.core.randomness import derived_seed, generator
from fedsim.core.settings import whole
from fedsim.core.training import Commitment, tensors_digest
from fedsim.defenses.integrity.proof.commitment import MerkleTree
from fedsim.integrity.states import Stateful, tensors_in


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """What a loop is to be trained on, step by step: it follows from its prover, the nonce and the data."""

    loader: DataLoader[Any]
    steps: int
    every: int
    secret: bytes  # of the prover's key and the verifier's nonce

    @cached_property
    def data(self) -> Commitment:
        """The commitment to all examples, in their order."""
        return MerkleTree(self._leaf(place) for place in range(self.examples)).commitment

    @cached_property
    def seed(self) -> int:
        """What the order of the data and the chance in every step are drawn from."""
        return seed_of(b"fedsim loop", self.secret, bytes.fromhex(self.data.root))

    @property
    def examples(self) -> int:
        """How many examples there are."""
        return len(self.loader.dataset)  # type: ignore[arg-type]

    @property
    def batch_size(self) -> int:
        """How many examples a step has."""
        return min(self.loader.batch_size or 1, self.examples)

    @property
    def epoch(self) -> int:
        """How many steps go once through the data; what does not fill a batch is left out."""
        return self.examples // self.batch_size

    def indices(self, step: int) -> tuple[int, ...]:
        """Return the places of a step's examples: epochs in random order."""
        epoch, place = divmod(step, self.epoch)
        return self._order(epoch)[place * self.batch_size : (place + 1) * self.batch_size]

    def batch(self, indices: Sequence[int]) -> Any:
        """Return a step's batch, as the loader would."""
        return self.loader.collate_fn([self.loader.dataset[place] for place in indices])

    def _order(self, epoch: int) -> tuple[int, ...]:
        if self._last.get("epoch") != epoch:
            drawn = torch.randperm(self.examples, generator=generator(self.seed, "order", epoch))
            self._last.update(epoch=epoch, order=tuple(drawn.tolist()))
        return self._last["order"]  # type: ignore[no-any-return]

    @cached_property
    def _last(self) -> dict[str, Any]:
        return {}

    def _leaf(self, place: int) -> bytes:
        example = tensors_in(self.batch([place]))
        return hashlib.sha256(b"\0" + bytes.fromhex(tensors_digest(example))).digest()


class Recorder:
    """What a loop takes its batches from: call it with a DataLoader and all that the loop changes."""

    step: int = 0  # the number of the step that its batch was handed out for
    epoch_ends: bool = False  # whether it is the last of an epoch

    def __init__(self, secret: bytes) -> None:
        """Set what the prover's key and the verifier's nonce are."""
        self._secret = secret

    def __call__(
        self, loader: DataLoader[Any], model: Stateful, *others: Stateful, steps: int, every: int
    ) -> Iterator[Any]:
        """Return the batches of so many steps, in an order of their own; a checkpoint every `every` steps.

        model, others: model, optimizer, schedule and whatever else the loop changes and has a state_dict.
        """
        for part in (model, *others):
            if not hasattr(part, "state_dict") or not hasattr(part, "load_state_dict"):
                raise FedsimError(f"record: expected parts that have a state_dict, got {type(part).__name__}")
        if not isinstance(loader, DataLoader) or not hasattr(loader.dataset, "__len__"):
            raise FedsimError("record: expected a DataLoader over a data set that has a length")
        plan = Plan(
            loader=loader,
            steps=whole("record: steps", steps),
            every=whole("record: every", every),
            secret=self._secret,
        )
        _check_data(plan)
        return self.batches(plan, (model, *others))

    def batches(self, plan: Plan, parts: Sequence[Stateful]) -> Iterator[Any]:
        """Hand out the batches, and do with the states between what the recorder is for."""
        raise NotImplementedError

    def hand_out(self, plan: Plan, step: int) -> None:
        """Make ready for a step: its number, and all global chance anew, so that it can be drawn again."""
        self.step, self.epoch_ends = step, (step + 1) % plan.epoch == 0
        seed_all(derived_seed(plan.seed, "step", step))


def seed_of(*secret: bytes) -> int:
    """Return a seed that follows from a secret."""
    return int.from_bytes(hashlib.sha256(b"".join(secret)).digest()[:8], "big") >> 1


def seed_all(seed: int) -> None:
    """Seed all that a loop may draw from: torch, numpy, Python."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 what loops draw from
    random.seed(seed)


def begin(secret: bytes) -> None:
    """Seed what a loop draws before its first step, such as its first weights."""
    seed_all(seed_of(b"fedsim first weights", secret))


def _check_data(plan: Plan) -> None:
    """Refuse data that could not be shown again: none, or examples that are others each time."""
    if plan.examples < 1:
        raise FedsimError("record: expected data, got none")
    once, again = (tensors_in(plan.batch([0])) for _ in range(2))
    if tensors_digest(once) != tensors_digest(again):
        raise FedsimError(
            "record: the data set's first example is another each time. "
            "Remedy: augment in the loop, after the batch was handed out: its chance is recorded."
        )
