"""The one ear: a Flower reply becomes an Observation, for our own strategy as for a Wiretap on any other."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeGuard, cast

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from torch import Tensor

from fedsim.core.errors import FedsimError
from fedsim.core.types import BatchNormMode, Kind, Observation, Weights, form_problem
from fedsim.flower.nodes import failure_of
from fedsim.flower.records import arrays_of, decode
from fedsim.flower.wire import dense_bytes

Replies = Literal["weights", "update", "gradient"]
Record = Mapping[str, object]  # of metrics or of settings
Names = tuple[str, ...]  # that a figure goes by
MOST = 2**40  # examples, steps or bytes that anybody may claim
LARGEST = 1e30  # loss or learning rate that anybody may claim


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """How the replies of an app are written, and what becomes of claims that make no sense."""

    replies: Replies
    batch_norm: BatchNormMode
    strict: bool  # nonsense is an error; otherwise it counts as not disclosed
    arrays: str = "arrays"  # the record of the weights; not strict: or the only one of its type
    disclosed: str | None = None  # the record of the figures; None: any, and the question's settings
    size: str | None = None  # the record of the bytes on the wire; None: those of the arrays
    learning_rate: Names = ("learning_rate",)
    local_steps: Names = ("local_steps",)
    num_examples: Names = ("num_examples",)
    loss: Names = ("loss",)
    class_counts: Names = ()  # none: they are not read
    num_classes: int = 0
    required: Names = ()  # figures without which a reply is refused

    @property
    def kind(self) -> Kind:
        """What is kept of a reply."""
        return "gradient" if self.replies == "gradient" else "update"


@dataclass(frozen=True, kw_only=True, eq=False)
class Question:
    """What a client was asked to train on."""

    sent: Weights  # in the types that are kept
    exact: Weights  # in the types that were sent
    settings: tuple[Record, ...] = ()  # that are known of its training


def training_settings(*, learning_rate: float | None, local_steps: int | None) -> Record:
    """Return what is known of the clients' training beside the messages, if it makes sense."""
    given = {"learning_rate": learning_rate, "local_steps": local_steps}
    figures = _Figures((given,), strict=True)
    return {
        "learning_rate": figures.number(("learning_rate",)),
        "local_steps": figures.count(("local_steps",)),
    }


def observation_of(
    reply: Message, question: Question, dialect: Dialect, *, round: int, client: int
) -> Observation:
    """Read a reply; whatever is wrong with it is an error."""
    if reason := failure_of(reply):
        raise FedsimError(reason)
    record = arrays_of(reply, dialect.arrays, strict=dialect.strict)
    came = decode(record)
    figures = _Figures(_disclosed(reply.content, question, dialect), dialect.strict)
    received = came if dialect.strict else _alike(came, question)
    if dialect.replies == "weights":
        received = {
            name: _difference(tensor, question.exact[name]).to(received[name].dtype)
            for name, tensor in came.items()
        }
    return Observation(
        round=round,
        client=client,
        sent=question.sent,
        received=received,
        kind=dialect.kind,
        learning_rate=figures.number(dialect.learning_rate),
        local_steps=figures.count(dialect.local_steps),
        num_examples=figures.count(dialect.num_examples),
        loss=figures.number(dialect.loss),
        class_counts=figures.counts(dialect.class_counts, dialect.num_classes),
        batch_norm=dialect.batch_norm,
        bytes=_bytes(reply.content, record, came, dialect),
    )


def _disclosed(content: RecordDict, question: Question, dialect: Dialect) -> tuple[Record, ...]:
    """Return the records in which a reply may disclose something, in the order in which they count."""
    if dialect.disclosed is None:
        reported = (*content.metric_records.values(), *content.config_records.values())
        return (*cast(Iterable[Record], reported), *question.settings)
    record = content.get(dialect.disclosed, MetricRecord())
    if not isinstance(record, MetricRecord):
        raise FedsimError(f"{dialect.disclosed}: expected a MetricRecord, got {type(record).__name__}")
    if missing := [name for name in dialect.required if name not in record]:
        raise FedsimError(f"{missing[0]} is missing, by which replies are weighted")
    return (cast(Record, record),)


def _bytes(content: RecordDict, record: ArrayRecord, came: Weights, dialect: Dialect) -> int | None:
    if dialect.size is None:
        return sum(len(array.data) for array in record.values())
    size = content.get(dialect.size)
    if not isinstance(size, MetricRecord):
        return dense_bytes(came)
    return _Figures((cast(Record, size),), dialect.strict).count(("bytes",))


@dataclass(frozen=True)
class _Figures:
    """What somebody claims; the first figure of a name counts, if it makes sense."""

    records: tuple[Record, ...]
    strict: bool

    def number(self, names: Names) -> float | None:
        for name, value in self._named(names):
            if _is_number(value) and 0 <= value <= LARGEST:
                return float(value)
            self._refuse(name, f"a number from 0 to {LARGEST:g}", value)
        return None

    def count(self, names: Names) -> int | None:
        for name, value in self._named(names):
            whole = isinstance(value, int) or not self.strict  # others write 24.0
            if whole and _is_number(value) and 1 <= value <= MOST and value == int(value):
                return int(value)
            self._refuse(name, f"a whole number from 1 to {MOST}", value)
        return None

    def counts(self, names: Names, classes: int) -> tuple[int, ...] | None:
        for name, value in self._named(names):
            listed = value if isinstance(value, list) else []
            if len(listed) == classes and all(isinstance(n, int) and 0 <= n <= MOST for n in listed):
                return tuple(listed)
            self._refuse(name, f"{classes} whole numbers", value)
        return None

    def _named(self, names: Names) -> Iterable[tuple[str, object]]:
        for record in self.records:
            for name in names:
                if (value := record.get(name)) is not None:
                    yield name, value

    def _refuse(self, name: str, expected: str, value: object) -> None:
        if self.strict:
            raise FedsimError(f"{name}: expected {expected}, got {str(value)[:80]}")


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _alike(came: Weights, question: Question) -> Weights:
    """Return what came back in the types of what is kept of the question."""
    kept = question.sent
    alike = {name: tensor.to(kept[name].dtype) if name in kept else tensor for name, tensor in came.items()}
    if problem := form_problem(alike, kept):
        raise FedsimError(problem)
    return alike


def _difference(new: Tensor, sent: Tensor) -> Tensor:
    """Return new - sent in the type of the client's model; what stays infinite or NaN differs by 0."""
    if new.dtype == torch.bool:
        new = new.long()
    start = sent.to(new.dtype)
    unchanged = (new == start) | ((new != new) & (start != start))  # masks hold infinities
    return torch.where(unchanged, torch.zeros_like(new), new - start)
