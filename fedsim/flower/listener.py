"""What a wiretap hears: passing messages become observations, and whatever is wrong with one a fault."""

import functools
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

import torch
from flwr.app import ArrayRecord, Message
from torch import nn

from fedsim.core.errors import FedsimError, in_words
from fedsim.core.interfaces import Attack
from fedsim.core.settings import one_of, whole
from fedsim.core.types import Fault, Observation, Task, Weights
from fedsim.flower.attack_one import attack_one
from fedsim.flower.nodes import failure_of
from fedsim.flower.observations import Dialect, Question, Record, observation_of
from fedsim.flower.records import arrays_of, decode
from fedsim.storage.runfolder import RunFolder
from fedsim.storage.status import Standing, Status

log = logging.getLogger(__name__)
Item = TypeVar("Item")
NOBODY = 0  # in place of a node id that cannot be read


@dataclass(frozen=True, kw_only=True, eq=False)
class Heard(Question):
    """A question as it passed."""

    record: ArrayRecord
    shared: bool  # with the round's first client


@dataclass(eq=False)
class Round:
    """What was seen of the round that is being played."""

    number: int = 0
    before: int = 0  # rounds of earlier starts of the same strategy, which begin at 1 again
    first: Heard | None = None
    latest: Heard | None = None
    asked: dict[int, Heard | None] = field(default_factory=dict)  # None: unreadable, or answered
    answered: set[int] = field(default_factory=set)


@dataclass(frozen=True, kw_only=True, eq=False)
class Listener:
    """The tap's ear: turns passing messages into observations."""

    folder: RunFolder
    attack: Attack | None
    every: int
    model: nn.Module | None
    task: Task | None
    dialect: Dialect
    settings: Record  # of the clients' training, where no message says them
    now: Round = field(default_factory=Round)

    def __post_init__(self) -> None:
        whole("every", self.every)
        one_of("replies", self.dialect.replies, ("weights", "update", "gradient"))
        one_of("batch_norm", self.dialect.batch_norm, ("eval", "train"))
        if self.attack is None:
            return
        if self.model is None or self.task is None:
            raise FedsimError(
                "attack: expected a model and a task with it, got at most one of them. Remedy: Wiretap(..., "
                "model=Net, task=Task(input_shape=(3, 32, 32), num_classes=10)), or attack in a replay."
            )
        if self.attack.crafts():
            raise FedsimError(
                f"attack: {type(self.attack).__name__} chooses the weights that are sent, and a wiretap "
                "changes nothing. Remedy: an attack on honest weights, such as ILRG()."
            )

    def taps(self, round: int) -> bool:
        """Say whether this round is kept."""
        return (round - 1) % self.every == 0

    def asked(self, round: int, messages: Iterable[Message]) -> Iterable[Message]:
        """Pass messages on, and note what they ask."""
        if round + self.now.before <= self.now.number:
            self.now.before = self.now.number
        self.now.number = round = round + self.now.before
        self.now.first = self.now.latest = None
        self.now.asked.clear()
        self.now.answered.clear()
        if not self.taps(round):
            return messages
        return _passed(messages, functools.partial(self._note_question, round))

    def answered(self, round: int, replies: Iterable[Message]) -> Iterable[Message]:
        """Pass replies on, and keep what they tell."""
        round += self.now.before
        if not self.taps(round):
            return replies
        return _passed(replies, functools.partial(self._note_reply, round))

    def ended(self, round: int) -> None:
        """Report clients that kept silent, attack what was seen, and say how far the tap has come."""
        round += self.now.before
        if not self.taps(round):
            return
        for client in sorted(self.now.asked.keys() - self.now.answered):
            self._fault(round, client, FedsimError("no reply within the strategy's timeout"))
        try:
            if self.attack is not None:  # read back one by one: a round may have thousands
                for observation in self.folder.observations(round):
                    self._attack(observation)
            self.folder.write_summary(_summary(self.folder, round))
        except Exception as error:
            log.warning("wiretap: round %d: %s", round, in_words(error))

    def _note_question(self, round: int, message: Message) -> None:
        client = NOBODY
        try:
            client = message.metadata.dst_node_id
            self.now.asked[client] = None
            self.now.asked[client] = self._heard(message)
        except Exception as error:
            self._fault(round, client, error)

    def _heard(self, message: Message) -> Heard:
        """Read a message's weights, once for all clients that get the same."""
        record = arrays_of(message, self.dialect.arrays, strict=self.dialect.strict)
        config = cast(Iterable[Record], message.content.config_records.values())
        settings = (*config, self.settings)
        for other in (self.now.first, self.now.latest):
            if other is not None and other.record is record:
                return replace(other, settings=settings)
        exact = decode(record)  # at once: a strategy may take the record apart afterwards
        sent = _as_kept(exact)
        shared = self.now.first is None or _equal(sent, self.now.first.sent)
        heard = Heard(record=record, exact=exact, sent=sent, settings=settings, shared=shared)
        self.now.first, self.now.latest = self.now.first or heard, heard
        return heard

    def _note_reply(self, round: int, reply: Message) -> None:
        client = NOBODY
        try:
            client = reply.metadata.src_node_id
            self.now.answered.add(client)
            if (question := self.now.asked.get(client)) is None:
                raise FedsimError(
                    failure_of(reply) or "a reply to a question that was not seen or could not be read"
                )
            observation = observation_of(reply, question, self.dialect, round=round, client=client)
            self.folder.keep_observation(observation, own_sent=not question.shared)
            self.now.asked[client] = None  # weights of its own, if it got some, need not wait any longer
        except Exception as error:
            self._fault(round, client, error)

    def _attack(self, observation: Observation) -> None:
        """Attack an observation and save the guess; a failure is a fault."""
        assert self.attack is not None
        assert self.model is not None
        assert self.task is not None
        found = attack_one(self.attack, self.model, self.task, observation)
        if isinstance(found, Fault):
            self._keep_fault(found)
            return
        try:
            self.folder.keep_guess(observation.round, observation.client, found)
        except Exception as error:
            self._fault(observation.round, observation.client, error)

    def _fault(self, round: int, client: int, error: Exception) -> None:
        self._keep_fault(Fault(round=round, client=client, reason=in_words(error)))

    def _keep_fault(self, fault: Fault) -> None:
        """Log what went wrong and keep it, if the disk lets us."""
        log.warning("wiretap: round %d, client %d: %s", fault.round, fault.client, fault.reason)
        try:
            self.folder.keep_fault(fault)
        except Exception as another:
            log.warning("wiretap: the fault could not be written: %s", in_words(another))


def _summary(folder: RunFolder, rounds: int) -> dict[str, Any]:
    """Return summary.json of a tapped folder: a tap has no scores."""
    faults = len(folder.faults())
    counts = {"observations": folder.count_observations(), "faults": faults, "rounds": rounds}
    return {"name": "wiretap", **Standing(Status.COMPLETE).fields, "metrics": {}, "baseline": {}} | counts


def _passed(items: Iterable[Item], note: Callable[[Item], None]) -> Iterable[Item]:
    """Note every item; a list stays the same list, a stream stays a stream."""
    if isinstance(items, list | tuple):
        for item in items:
            note(item)
        return items
    return _stream(items, note)


def _stream(items: Iterable[Item], note: Callable[[Item], None]) -> Iterator[Item]:
    for item in items:
        note(item)
        yield item


def _as_kept(weights: Weights) -> Weights:
    """Return weights with floats as float32: FedAdam and its like send float64 to float32 models."""
    return {name: t.float() if t.is_floating_point() else t for name, t in weights.items()}


def _equal(left: Weights, right: Weights) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)
