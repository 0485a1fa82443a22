"""What a wiretap hears: Flower messages become observations, and whatever is wrong with one a fault."""

import functools
import logging
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar, cast

import numpy as np
import torch
from flwr.app import ArrayRecord, Message, RecordDict
from torch import Tensor, nn

from fedsim.core.errors import FedsimError, in_words, shortened
from fedsim.core.interfaces import Attack
from fedsim.core.training import load_weights
from fedsim.core.types import BatchNormMode, Fault, Kind, Observation, Task, Weights, form_problem
from fedsim.flower.records import decode
from fedsim.models.foreign import fitted
from fedsim.storage.runfolder import RunFolder
from fedsim.storage.status import Standing, Status

log = logging.getLogger(__name__)
Replies = Literal["weights", "update", "gradient"]
Item = TypeVar("Item")
Record = Mapping[str, object]  # of metrics or of settings
MOST = 2**40  # examples or steps that anybody may claim
NOBODY = 0  # in place of a node id that cannot be read
RATE, STEPS = ("learning-rate", "learning_rate", "lr"), ("local-steps", "local_steps")
EXAMPLES, LOSS = ("num-examples", "num_examples"), ("train_loss", "train-loss", "loss")


@dataclass(frozen=True, kw_only=True, eq=False)
class Question:
    """What a client was asked to train on."""

    record: ArrayRecord
    exact: Weights  # in the types sent
    kept: Weights  # in the types that are kept
    config: tuple[Record, ...]
    shared: bool  # with the round's first client


@dataclass(eq=False)
class Round:
    """What was seen of the round that is being played."""

    number: int = 0
    before: int = 0  # rounds of earlier starts of the same strategy, which begin at 1 again
    first: Question | None = None
    latest: Question | None = None
    asked: dict[int, Question | None] = field(default_factory=dict)  # None: unreadable, or answered
    answered: set[int] = field(default_factory=set)


@dataclass(frozen=True, kw_only=True, eq=False)
class Listener:
    """The tap's ear: turns passing messages into observations."""

    folder: RunFolder
    attack: Attack | None
    every: int
    model: nn.Module | None
    task: Task | None
    replies: Replies
    batch_norm: BatchNormMode
    learning_rate: float | None
    local_steps: int | None
    arrays_key: str
    examples_key: str
    now: Round = field(default_factory=Round)

    def __post_init__(self) -> None:
        if not isinstance(self.every, int) or isinstance(self.every, bool) or self.every < 1:
            raise FedsimError(f"every: expected a whole number of at least 1, got {self.every!r}")
        if self.replies not in ("weights", "update", "gradient"):
            raise FedsimError(f"replies: expected weights, update or gradient, got {self.replies!r}")
        if self.batch_norm not in ("eval", "train"):
            raise FedsimError(f"batch_norm: expected eval or train, got {self.batch_norm!r}")
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
            self.now.asked[client] = self._question(message.content)
        except Exception as error:
            self._fault(round, client, error)

    def _question(self, content: RecordDict) -> Question:
        """Read a message's weights, once for all clients that get the same."""
        record = _only_arrays(content, self.arrays_key)
        config = tuple(cast(Iterable[Record], content.config_records.values()))
        for other in (self.now.first, self.now.latest):
            if other is not None and other.record is record:
                return replace(other, config=config)
        exact = decode(record)  # at once: a strategy may take the record apart afterwards
        kept = _as_kept(exact)
        shared = self.now.first is None or _equal(kept, self.now.first.kept)
        question = Question(record=record, exact=exact, kept=kept, config=config, shared=shared)
        self.now.first, self.now.latest = self.now.first or question, question
        return question

    def _note_reply(self, round: int, reply: Message) -> None:
        client = NOBODY
        try:
            client = reply.metadata.src_node_id
            self.now.answered.add(client)
            observation, shared = self._observation(round, client, reply)
            self.folder.keep_observation(observation, own_sent=not shared)
            self.now.asked[client] = None  # weights of its own, if it got some, need not wait any longer
        except Exception as error:
            self._fault(round, client, error)

    def _observation(self, round: int, client: int, reply: Message) -> tuple[Observation, bool]:
        """Read a reply; whatever is wrong with it is an error."""
        if reply.has_error():
            reason = " ".join((reply.error.reason or "").split())  # Ray's come in many lines
            raise FedsimError(shortened(reason) or f"error code {reply.error.code} without a reason")
        question = self.now.asked.get(client)
        if question is None:
            raise FedsimError("a reply to a question that was not seen or could not be read")
        record, content = _only_arrays(reply.content, self.arrays_key), reply.content
        reported = (*content.metric_records.values(), *content.config_records.values())
        told = (*cast(Iterable[Record], reported), *question.config)
        rate, steps = _number(told, RATE), _count(told, STEPS)
        observation = Observation(
            round=round,
            client=client,
            sent=question.kept,
            received=self._received(decode(record), question),
            kind=self.kind,
            learning_rate=self.learning_rate if rate is None else rate,
            local_steps=self.local_steps if steps is None else steps,
            num_examples=_count(told, (self.examples_key, *EXAMPLES)),
            loss=_number(told, LOSS),
            batch_norm=self.batch_norm,
            bytes=sum(len(array.data) for array in record.values()),
        )
        return observation, question.shared

    @property
    def kind(self) -> Kind:
        """What is kept of a reply."""
        return "gradient" if self.replies == "gradient" else "update"

    def _received(self, came: Weights, question: Question) -> Weights:
        """Return what came back as an update or a gradient, in the types of what is kept of the question."""
        alike = {
            name: tensor.to(question.kept[name].dtype) if name in question.kept else tensor
            for name, tensor in came.items()
        }
        if problem := form_problem(alike, question.kept):
            raise FedsimError(problem)
        if self.replies != "weights":
            return alike
        return {
            name: _difference(tensor, question.exact[name]).to(alike[name].dtype)
            for name, tensor in came.items()
        }

    def _attack(self, observation: Observation) -> None:
        """Attack an observation and save the guess; a failure is a fault."""
        assert self.attack is not None
        assert self.model is not None
        assert self.task is not None
        try:
            with undisturbed(), torch.enable_grad():
                reduced = fitted(self.model, observation)
                load_weights(self.model, reduced.sent)
                guess = self.attack.run(self.model, self.task, [reduced])
            self.folder.keep_guess(observation.round, observation.client, guess)
        except Exception as error:
            log.debug("attack failed", exc_info=True)
            words = FedsimError(f"the attack failed: {in_words(error)}")
            self._fault(observation.round, observation.client, words)

    def _fault(self, round: int, client: int, error: Exception) -> None:
        """Log what went wrong and keep it as a fault, if the disk lets us."""
        log.warning("wiretap: round %d, client %d: %s", round, client, in_words(error))
        try:
            self.folder.keep_fault(Fault(round=round, client=client, reason=in_words(error)))
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


def _only_arrays(content: RecordDict, key: str) -> ArrayRecord:
    """Return a message's model: its only array record, or the one under the strategy's key."""
    records = content.array_records
    if len(records) == 1:
        return next(iter(records.values()))
    if key not in records:
        raise FedsimError(f"expected one ArrayRecord, or one named {key!r}, got {sorted(records) or 'none'}")
    return records[key]


def _as_kept(weights: Weights) -> Weights:
    """Return weights with floats as float32: FedAdam and its like send float64 to float32 models."""
    return {name: t.float() if t.is_floating_point() else t for name, t in weights.items()}


def _equal(left: Weights, right: Weights) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def _difference(new: Tensor, sent: Tensor) -> Tensor:
    """Return new - sent in the type of the client's model; what stays infinite or NaN differs by 0."""
    if new.dtype == torch.bool:
        new = new.long()
    start = sent.to(new.dtype)
    unchanged = (new == start) | ((new != new) & (start != start))  # masks hold infinities
    return torch.where(unchanged, torch.zeros_like(new), new - start)


def _number(records: Iterable[Record], names: Iterable[str]) -> float | None:
    """Return the first number of one of these names, if it makes sense."""
    for record in records:
        for name in names:
            value = record.get(name)
            if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < MOST:
                return float(value)
    return None


def _count(records: Iterable[Record], names: Iterable[str]) -> int | None:
    value = _number(records, names)
    return int(value) if value is not None and value >= 1 and value == int(value) else None


@contextmanager
def undisturbed() -> Iterator[None]:
    """Give the app its random numbers back: its model, sampling and noise draw from the global generators."""
    state, noise = random.getstate(), np.random.get_state()  # noqa: NPY002
    devices = list(range(torch.cuda.device_count()))
    with ExitStack() as stack:
        stack.callback(np.random.set_state, noise)
        stack.callback(random.setstate, state)
        stack.enter_context(torch.random.fork_rng(devices=devices))
        yield
