"""Replies as no client of ours would send them: mutated on Flower's own message path."""

import contextlib
import io
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp

from fedsim.core.types import Weights
from fedsim.flower.averaging import RunningMean
from fedsim.flower.engines.engine import Apps, Engine
from fedsim.lab.experiment import Experiment, run

NUMBERS = (0.0, -0.0, 1e-45, -1e-42, 1e-30, 1e3, 1e6, 1e12, 1e20, 1e30, -1e37, 3.3e38, -3.4e38)
NUMBERS += (float("nan"), float("inf"), float("-inf"))
TOLD = (-1, 0, 1, 2, 24, 2**20, 2**40, 2**40 + 1, 2**62, -(2**62), 0.5, -0.0, 1e-320, 1e300, float("nan"))
TOLD += (float("inf"), [1], [], [2**40] * 4, [0.5], [1, 2, 3, 4], 10**400, -(10**5000))
WORDS = (
    "",
    "plain",
    "\ud800",
    "\x1b[2J\x07",
    "\u202eabc",
    "<script>",
    "$\\frac$",
    "x" * 70_000,
    "a\r\nb,\"c'",
    "\0",
)


def mutate(reply: Message, random: random.Random) -> tuple[str, Message]:
    """Return a reply with something changed, and what."""
    how = random.choice(MUTATIONS)
    if reply.has_error():
        return "as it is", reply
    content = RecordDict(dict(reply.content))
    changed = how(content, random)
    if isinstance(changed, Error):
        return how.__name__, Message(changed, metadata=reply.metadata)  # type: ignore[call-overload]
    return how.__name__, Message(content, metadata=reply.metadata)  # type: ignore[call-overload]


def numbers(content: RecordDict, random: random.Random) -> None:
    """Some entries of a tensor are others."""
    name, values = _values(content, random)
    if values.size:
        flat = values.reshape(-1)
        for place in random.choices(range(flat.size), k=random.choice([1, 1, 3, flat.size])):
            with np.errstate(over="ignore"):
                flat[place] = random.choice(NUMBERS)
    _put(content, name, values)


def layout(content: RecordDict, random: random.Random) -> None:
    """The same numbers, in another order of memory or another version of .npy."""
    name, values = _values(content, random)
    if random.random() < 0.5:
        _put(content, name, np.asfortranarray(values))
        return
    stream = io.BytesIO()
    np.lib.format.write_array(stream, values, version=random.choice([(1, 0), (2, 0), (3, 0)]))
    _array(content, name, Array(str(values.dtype), tuple(values.shape), "numpy.ndarray", stream.getvalue()))


def types(content: RecordDict, random: random.Random) -> None:
    """Another type of number."""
    name, values = _values(content, random)
    kinds = ("float64", "float16", "int8", "int64", "bool", "complex64", "U3", ">f4")
    _put(content, name, values.astype(random.choice(kinds)))


def shape(content: RecordDict, random: random.Random) -> None:
    """Another shape, of as many numbers or of others."""
    name, values = _values(content, random)
    others = (values.reshape(-1), values[None], values.T, values[:0], np.float32(1).reshape(()), values[:-1])
    _put(content, name, random.choice(others))


def lies(content: RecordDict, random: random.Random) -> None:
    """A record that says something else than its bytes."""
    name, values = _values(content, random)
    array = _record(content)[name]
    told = (random.choice(["float32", "float64", "object", "nonsense"]), (2**40,), (-1,), ())
    dtype, *shapes = told
    stype = random.choice(["numpy.ndarray", "numpy.ndarray", "pickle", ""])
    sizes = random.choice([tuple(values.shape), *shapes])
    _array(content, name, Array(dtype, sizes, stype, array.data))


def bytes_(content: RecordDict, random: random.Random) -> None:
    """Flipped, lost or added bytes."""
    name, values = _values(content, random)
    data = bytearray(_record(content)[name].data)
    place = random.randrange(len(data))
    if (how := random.randrange(3)) == 0:
        data[place] ^= 1 << random.randrange(8)
    elif how == 1:
        del data[place:]
    else:
        data += bytes(random.randrange(1, 200))
    _array(content, name, Array("float32", tuple(values.shape), "numpy.ndarray", bytes(data)))


def names(content: RecordDict, random: random.Random) -> None:
    """A tensor under another name, missing, or one too many."""
    record = dict(_record(content))
    name = random.choice(list(record))
    how = random.randrange(3)
    array = record.pop(name) if how < 2 else record[name]
    if how:
        record[random.choice(["x" * 10_000, "", "../x", "\ud800", "\x1b[31m", name + " "])] = array
    content["arrays"] = ArrayRecord(record)


def told(content: RecordDict, random: random.Random) -> None:
    """A disclosed number that makes no sense."""
    record = dict(content["disclosed"])
    keys = ("num_examples", "learning_rate", "local_steps", "loss", "class_counts", "else")
    record[random.choice(keys)] = random.choice(TOLD)
    content["disclosed"] = MetricRecord(record)


def size(content: RecordDict, random: random.Random) -> None:
    """A size that is none."""
    content["size"] = MetricRecord({"bytes": random.choice([n for n in TOLD if not isinstance(n, list)])})


def records(content: RecordDict, random: random.Random) -> None:
    """Records of other kinds, missing, or one too many."""
    key = random.choice(["arrays", "disclosed", "proof", "size", "extra"])
    if random.random() < 0.3:
        content.pop(key, None)
        return
    kinds = (ConfigRecord({"a": random.choice(WORDS[:2])}), MetricRecord({"a": 1}), ArrayRecord({}))
    content[key] = random.choice(kinds)


def errors(content: RecordDict, random: random.Random) -> Error:
    """An error in place of a reply."""
    return Error(code=random.choice([0, 1, 2, 99, -5]), reason=random.choice([*WORDS, None]))  # type: ignore[arg-type]


def nothing(content: RecordDict, random: random.Random) -> None:
    """An empty reply."""
    content.clear()


MUTATIONS: tuple[Callable[[RecordDict, random.Random], Error | None], ...] = (
    *(numbers, numbers, numbers, layout, layout, types, shape, lies, bytes_, bytes_, names),
    *(told, told, size, records, errors, nothing),
)


class MutatingApp(ClientApp):
    """A client app of which one client a round, drawn from a seed, sends a mutated reply, and notes it."""

    def __init__(self, app: ClientApp, clients: int, seed: int, notes: Path) -> None:
        self._app, self._clients, self._seed, self._notes = app, clients, seed, notes

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer, and mutate the answer if it is this client's turn."""
        reply = self._app(message, context)
        round, client = int(message.metadata.group_id), int(context.node_config["partition-id"])
        if client != victim(self._seed, round, self._clients):
            return reply
        how, reply = mutate(reply, random.Random(f"{self._seed} {round}"))
        arrays = {} if reply.has_error() else reply.content.get("arrays", {})
        sent = {}
        for name, array in arrays.items() if isinstance(arrays, ArrayRecord) else ():
            with contextlib.suppress(Exception):
                sent[name] = array.numpy()
        (self._notes / f"{round}.txt").write_text(how)
        plain = {
            str(place): values for place, values in enumerate(_sorted(sent)) if not values.dtype.hasobject
        }
        np.savez(self._notes / f"{round}.npz", **plain)
        return reply


def victim(seed: int, round: int, clients: int) -> int:
    """Return the client whose reply is mutated in a round."""
    return random.Random(f"victim {seed} {round}").randrange(clients)


class Mutating(Engine):
    """An engine with such a client app."""

    def __init__(self, engine: Engine, seed: int, notes: Path) -> None:
        self._engine, self._seed, self._notes = engine, seed, notes

    def play(self, apps: Apps) -> None:
        """Play as the other engine does."""
        client = MutatingApp(apps.client, apps.clients, self._seed, self._notes)
        self._engine.play(replace(apps, client=client))


def play_mutated(experiment: Experiment, path: Path, seed: int) -> Counter[tuple[str, bool]]:
    """Play rounds with a mutated reply each; return what was changed, and whether it was taken.

    Whatever is not as it should be is an AssertionError: somebody else was blamed, or what was saved is not
    what was sent, or not what was averaged.
    """
    notes = path.with_name(f"{path.name} sent")
    notes.mkdir(parents=True)
    engine = Mutating(experiment.engine, seed, notes)
    folder = run(replace(experiment, engine=engine), path)
    rules, found = experiment.federation, Counter[tuple[str, bool]]()
    faults = {(fault.round, fault.client) for fault in folder.faults()}
    assert len(faults) == len(folder.faults())
    assert folder.status == "complete"
    model: Weights = folder.last_round()[1]
    for round in range(rules.rounds, 0, -1):
        guilty = victim(seed, round, rules.clients)
        seen = list(folder.observations(round))
        taken = guilty in {o.client for o in seen}
        assert {c for r, c in faults if r == round} == (set() if taken else {guilty}), (seed, round)
        assert {o.client for o in seen} | {guilty} == set(range(rules.clients)), (seed, round)
        mean = RunningMean()
        for observation in seen:
            mean.add(observation.received, float(observation.num_examples or 1))
            if observation.client == guilty:
                with np.load(notes / f"{round}.npz") as sent:
                    values = [sent[str(place)] for place in range(len(observation.received))]
                for tensor, value in zip(_sorted(observation.received), values, strict=True):
                    assert np.array_equal(tensor.numpy(), value), (seed, round)
        step = rules.server_step / mean.weight
        for name, tensor in seen[0].sent.items():
            assert torch.equal(model[name], tensor.add(mean.sum[name], alpha=step)), (seed, round)
            assert torch.isfinite(model[name]).all()
        model = seen[0].sent
        found[(notes / f"{round}.txt").read_text(), taken] += 1
    return found


def _sorted(named: Mapping[str, Any]) -> list[Any]:
    return [named[name] for name in sorted(named)]


def _record(content: RecordDict) -> ArrayRecord:
    return content.array_records["arrays"]


def _values(content: RecordDict, random: random.Random) -> tuple[str, np.ndarray]:
    name = random.choice(list(_record(content)))
    return name, np.array(_record(content)[name].numpy())


def _put(content: RecordDict, name: str, values: Any) -> None:
    _array(content, name, Array(np.asanyarray(values)))


def _array(content: RecordDict, name: str, array: Array) -> None:
    content["arrays"] = ArrayRecord({**_record(content), name: array})
