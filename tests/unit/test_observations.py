"""The one ear: our own strategy and a Wiretap read replies alike, but for what they do about nonsense."""

import dataclasses

import pytest
import torch
from flwr.app import ConfigRecord, Error, Message, MessageType, Metadata, MetricRecord, RecordDict

from fedsim.core.errors import FedsimError
from fedsim.flower.observations import MOST, Dialect, Question, observation_of, training_settings
from fedsim.flower.records import encode

SENT = {"weight": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "bias": torch.tensor([0.5, float("inf")])}
CAME = {"weight": torch.tensor([[1.5, 2.0], [3.0, 3.0]]), "bias": torch.tensor([0.0, 1.0])}
QUESTION = Question(sent=SENT, exact=SENT)
OWN = Dialect(
    replies="update",
    batch_norm="eval",
    strict=True,
    disclosed="disclosed",
    size="size",
    class_counts=("class_counts",),
    num_classes=2,
)
FOREIGN = dataclasses.replace(OWN, strict=False, disclosed=None, size=None)
FIGURES = {
    "learning_rate": 0.1,
    "local_steps": 3,
    "num_examples": 24,
    "loss": 2.0,
    "class_counts": [20, 4],
}


def message(content: RecordDict | Error) -> Message:
    """Return a reply of node 7."""
    envelope = Metadata(1, "2", 7, 1, "1", "2", 0.0, 60.0, MessageType.TRAIN)
    return Message(content, metadata=envelope)


def reply(**records) -> Message:
    return message(RecordDict({"arrays": encode(CAME)} | records))


def read(dialect: Dialect, came: Message, question: Question = QUESTION):
    return observation_of(came, question, dialect, round=2, client=1)


@pytest.mark.parametrize("dialect", [OWN, FOREIGN], ids=["own", "foreign"])
def test_sensible_figures_are_read_alike(dialect: Dialect) -> None:
    seen = read(dialect, reply(disclosed=MetricRecord(FIGURES)))
    assert {name: getattr(seen, name) for name in FIGURES} == FIGURES | {"class_counts": (20, 4)}
    assert (seen.round, seen.client, seen.kind, seen.batch_norm) == (2, 1, "update", "eval")
    assert all(torch.equal(seen.received[name], CAME[name]) for name in CAME)
    silent = read(dialect, reply())
    assert [getattr(silent, name) for name in FIGURES] == [None] * 5


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("learning_rate", -0.1, "a number from 0"),
        ("loss", float("nan"), "a number from 0"),
        ("loss", 1e31, "a number from 0"),
        ("num_examples", 0, "a whole number from 1"),
        ("num_examples", 2.5, "a whole number from 1"),
        ("local_steps", MOST + 1, "a whole number from 1"),
        ("class_counts", [1, 2, 3], "2 whole numbers"),
        ("class_counts", [1, -1], "2 whole numbers"),
    ],
)
def test_nonsense_is_an_error_of_ours_and_not_disclosed_elsewhere(name, value, expected) -> None:
    came = reply(disclosed=MetricRecord(FIGURES | {name: value}))
    with pytest.raises(FedsimError, match=f"{name}: expected {expected}"):
        read(OWN, came)
    assert getattr(read(FOREIGN, came), name) is None
    later = dataclasses.replace(QUESTION, settings=({name: FIGURES[name]},))
    assert getattr(read(FOREIGN, came, later), name) in (FIGURES[name], (20, 4))


def test_only_our_own_replies_have_fixed_records() -> None:
    elsewhere = reply(metrics=MetricRecord({"num_examples": 24.0}), config=ConfigRecord({"loss": 2.0}))
    assert (read(OWN, elsewhere).num_examples, read(OWN, elsewhere).loss) == (None, None)
    assert (read(FOREIGN, elsewhere).num_examples, read(FOREIGN, elsewhere).loss) == (24, 2.0)
    needs = dataclasses.replace(OWN, required=("num_examples",))
    with pytest.raises(FedsimError, match="num_examples is missing"):
        read(needs, elsewhere)
    with pytest.raises(FedsimError, match="disclosed: expected a MetricRecord, got ConfigRecord"):
        read(OWN, reply(disclosed=ConfigRecord()))
    renamed = message(RecordDict({"model": encode(CAME)}))
    with pytest.raises(FedsimError, match="expected an ArrayRecord 'arrays'"):
        read(OWN, renamed)
    assert read(FOREIGN, renamed).received.keys() == CAME.keys()
    with pytest.raises(FedsimError, match="expected one ArrayRecord, or one named 'arrays', got"):
        read(FOREIGN, message(RecordDict()))


def test_bytes_are_those_on_the_wire() -> None:
    assert read(OWN, reply()).bytes == 24
    assert read(OWN, reply(size=MetricRecord({"bytes": 5}))).bytes == 5
    assert read(FOREIGN, reply(size=MetricRecord({"bytes": 5}))).bytes > 24  # with Flower's headers


def test_other_types_are_converted_elsewhere_and_refused_here() -> None:
    double = {name: tensor.double() for name, tensor in CAME.items()}
    came = reply(arrays=encode(double))
    with pytest.raises(FedsimError, match=r"expected torch\.float32, got torch\.float64"):
        read(OWN, came)
    assert read(FOREIGN, came).received["weight"].dtype == torch.float32


def test_new_weights_become_an_update() -> None:
    kept_infinity = CAME | {"bias": torch.tensor([0.0, float("inf")])}
    sent = dataclasses.replace(QUESTION, sent={name: torch.zeros_like(t) for name, t in SENT.items()})
    dialect = dataclasses.replace(FOREIGN, replies="weights")
    seen = read(dialect, reply(arrays=encode(kept_infinity)), sent)
    assert seen.kind == "update"
    assert seen.received["weight"].tolist() == [[0.5, 0.0], [0.0, -1.0]]
    assert seen.received["bias"].tolist() == [-0.5, 0.0]


def test_a_failed_client_is_an_error_in_its_words() -> None:
    for error, words in ((Error(2, "on \n fire"), "^on fire$"), (Error(2), "error code 2 without a reason")):
        with pytest.raises(FedsimError, match=words):
            read(FOREIGN, message(error))


def test_settings_that_make_no_sense_are_refused() -> None:
    assert training_settings(learning_rate=0.1, local_steps=None) == {
        "learning_rate": 0.1,
        "local_steps": None,
    }
    with pytest.raises(FedsimError, match="local_steps: expected a whole number from 1"):
        training_settings(learning_rate=None, local_steps=0)
