"""A proof of learning as bytes: a short canonical JSON header, then raw numbers.

The layout is docs/proof-format.md. A reader trusts nothing: every length is checked against the bytes that
are there before anything is allocated, every key and type is expected or refused, and steps and checkpoints
are read where somebody looks at them.
"""

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Literal

import numpy as np
import torch

from fedsim.core.lazily import Lazily
from fedsim.core.training import Trace, tensors_digest
from fedsim.defenses.integrity.proof.checkpoints import TYPES, Field, Malformed, as_arrays, as_checkpoints
from fedsim.defenses.integrity.proof.machine import machine

VERSION = 3
PRECISIONS = ("float32", "float16")
NUMBER = np.dtype("<u4")  # of batch sizes and places
MOST_STEPS = 10_000_000
MOST_HEADER = 2**20  # bytes: JSON takes many times as much memory
MOST_TEXT = 2**22  # of settings at a checkpoint
LIBRARIES = ("torch", "numpy", "fedsim-lab")
_KEYS = {
    "version": int,
    "subject": str,
    "round": int,
    "client": int,
    "initial": str,
    "parent": str,
    "data": str,
    "nonce": str,
    "learning_rate": float,
    "every": int,
    "steps": int,
    "gradient": bool,
    "settings": int,
    "precision": str,
    "threads": int,
    "machine": str,
    "libraries": dict,
    "calibration": dict,
    "tensors": list,
}
DIGEST = 32  # bytes
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True, eq=False)
class Proof:
    """What a prover says of its training."""

    subject: str  # in words: whose training of what
    round: int  # 0: not in a federation
    client: int
    initial: Literal["random", "parent"]
    parent: str  # digest of the weights that training began from
    trace: Trace
    threads: int
    libraries: dict[str, str]  # name -> version
    machine: str = ""  # what of it decides the last bits
    data: str = ""  # root of the data that was committed to; empty: the verifier was told it apart
    nonce: str = ""  # the verifier's, in hex; empty: none
    calibration: dict[str, Any] = field(default_factory=dict)  # what delta was measured for; empty: nothing
    precision: str = "float32"  # of the checkpoints; float16 halves the size and blurs the verdict


def proof_of(
    trace: Trace, *, subject: str, round: int = 0, client: int = 0, initial: str = "parent"
) -> Proof:
    """Return the proof that a trace makes, on this machine."""
    return Proof(
        subject=subject,
        round=round,
        client=client,
        initial="random" if initial == "random" else "parent",
        parent=tensors_digest(trace.checkpoints[0]),
        trace=trace,
        threads=torch.get_num_threads(),
        libraries={name: version(name) for name in LIBRARIES},
        machine=machine(),
    )


def to_bytes(proof: Proof) -> bytes:
    """Write a proof: the same proof gives the same bytes."""
    trace, half = proof.trace, proof.precision == "float16"
    rows = [as_arrays(checkpoint, half) for checkpoint in trace.checkpoints]
    settings = [text.encode() for text in trace.settings]
    header = {
        "version": VERSION,
        "subject": proof.subject,
        "round": proof.round,
        "client": proof.client,
        "initial": proof.initial,
        "parent": proof.parent,
        "learning_rate": float(trace.learning_rate),
        "every": trace.every,
        "precision": proof.precision,
        "threads": proof.threads,
        "libraries": proof.libraries,
        "steps": len(trace.digests),
        "gradient": trace.gradient,
        "settings": len(settings),
        "machine": proof.machine,
        "data": proof.data,
        "nonce": proof.nonce,
        "calibration": proof.calibration,
        "tensors": [[name, list(array.shape), array.dtype.str] for name, array in rows[0].items()],
    }
    text = canonical(header)
    parts = [len(text).to_bytes(4, "little"), text]
    parts.append(np.array([len(step) for step in trace.indices], NUMBER).tobytes())
    parts.append(np.array([place for step in trace.indices for place in step], NUMBER).tobytes())
    parts += [bytes.fromhex(digest) for digest in trace.digests]
    parts += [np.array([len(text) for text in settings], NUMBER).tobytes(), *settings]
    parts += [row[name].tobytes() for row in rows for name in rows[0]]
    return b"".join(parts)


def from_bytes(content: bytes) -> Proof:
    """Read a proof; whatever is not exactly one is Malformed, with the reason."""
    header, start = read_header(content, _KEYS)
    _check(header)
    fields = [Field(name, tuple(shape), np.dtype(kind)) for name, shape, kind in header["tensors"]]
    steps, number = header["steps"], header["settings"]
    checkpoints = 1 + -(-steps // header["every"])
    if number not in (0, checkpoints):
        raise Malformed(f"settings: expected none, or those of {checkpoints} checkpoints, got {number}")
    left = len(content) - start - steps * (NUMBER.itemsize + DIGEST) - number * NUMBER.itemsize
    if left < 0:
        raise Malformed(f"expected sizes and digests of {steps} steps, got {len(content) - start} bytes")
    sizes = np.frombuffer(content, NUMBER, steps, start)
    _need(bool(sizes.all()), "a step without examples")
    places, start = int(sizes.sum(dtype=np.int64)), start + sizes.nbytes
    digests = start + places * NUMBER.itemsize
    texts, lengths = digests + steps * DIGEST, np.zeros(0, NUMBER)
    if number and len(content) >= texts + number * NUMBER.itemsize:
        lengths = np.frombuffer(content, NUMBER, number, texts)
        _need(int(lengths.max()) <= MOST_TEXT, f"settings: expected at most {MOST_TEXT} bytes a checkpoint")
    used = places * NUMBER.itemsize + int(lengths.sum(dtype=np.int64))
    expected = checkpoints * sum(field.size for field in fields)
    if left != used + expected:
        needed = len(content) - left + used + expected
        raise Malformed(f"expected {needed} bytes for {checkpoints} checkpoints, got {len(content)}")
    rows = memoryview(content)[len(content) - expected :]
    trace = Trace(
        checkpoints=as_checkpoints(rows, checkpoints, fields, header["precision"] == "float16"),
        every=header["every"],
        learning_rate=header["learning_rate"],
        indices=Lazily(steps, _rows(np.frombuffer(content, NUMBER, places, start), sizes)),
        digests=Lazily(steps, _digests(content, digests)),
        gradient=header["gradient"],
        settings=Lazily(number, _texts(content, texts + number * NUMBER.itemsize, lengths)),
    )
    taken = ("subject", "round", "client", "initial", "parent", "data", "nonce", "threads", "machine")
    named = {key: header[key] for key in (*taken, "libraries", "calibration", "precision")}
    return Proof(trace=trace, **named)


def _texts(content: bytes, start: int, lengths: np.ndarray) -> Callable[[int], str]:
    ends = start + np.cumsum(lengths, dtype=np.int64)
    return lambda place: content[ends[place] - lengths[place] : ends[place]].decode(errors="replace")


def _rows(places: np.ndarray, sizes: np.ndarray) -> Callable[[int], tuple[int, ...]]:
    ends = np.cumsum(sizes, dtype=np.int64)
    return lambda step: tuple(places[ends[step] - sizes[step] : ends[step]].tolist())


def _digests(content: bytes, start: int) -> Callable[[int], str]:
    return lambda step: content[start + step * DIGEST : start + (step + 1) * DIGEST].hex()


def canonical(header: dict[str, Any]) -> bytes:
    """Return the one way of writing a header."""
    return json.dumps(header, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def read_header(content: bytes, keys: dict[str, type]) -> tuple[dict[str, Any], int]:
    """Read a length and the canonical JSON of these keys and types; also return where it ends."""
    if len(content) < 4:
        raise Malformed(f"expected a header, got {len(content)} bytes")
    length = int.from_bytes(content[:4], "little")
    if length > len(content) - 4:
        raise Malformed(f"a header of {length} bytes is declared, {len(content) - 4} are there")
    if length > MOST_HEADER:
        raise Malformed(f"expected a header of at most {MOST_HEADER} bytes, got {length}")
    text = content[4 : 4 + length]
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Malformed("the header is not JSON") from error
    if not isinstance(header, dict) or header.keys() != keys.keys():
        raise Malformed(f"expected a header with the keys {', '.join(sorted(keys))}")
    for key, kind in keys.items():
        if type(header[key]) is not kind:  # a bool is an int to isinstance
            raise Malformed(f"{key}: expected {kind.__name__}, got {type(header[key]).__name__}")
    try:
        same = canonical(header) == text
    except (ValueError, RecursionError) as error:
        raise Malformed("the header cannot be written again") from error
    if not same:
        raise Malformed("the header is not in its canonical form")
    return header, 4 + length


def _check(header: dict[str, Any]) -> None:
    """Refuse values that no proof has."""
    version = header["version"]
    _need(version == VERSION, f"version {version} is not known here (this reads {VERSION})")
    _need(header["initial"] in ("random", "parent"), "initial: expected random or parent")
    _need(bool(_DIGEST.fullmatch(header["parent"])), "parent: expected a SHA-256")
    looped = header["settings"] > 0
    _need(not header["gradient"] or (header["steps"] == 1 and not looped), "gradient: expected one step")
    _need(0 <= header["settings"] <= MOST_STEPS, "settings: expected a number")
    _need(
        header["learning_rate"] == 0 if looped else 0 < header["learning_rate"] < math.inf,
        "learning_rate: expected a positive number, or 0 beside settings",
    )
    _need(0 < header["every"] <= MOST_STEPS, "every: expected a positive number")
    whole = [header["threads"] - 1, header["round"], header["client"]]
    _need(all(0 <= number < 2**63 for number in whole), "threads, round, client: expected whole numbers")
    _need(header["precision"] in PRECISIONS, "precision: expected float32 or float16")
    _need(
        all(isinstance(key, str) and isinstance(value, str) for key, value in header["libraries"].items()),
        "libraries: expected names and versions",
    )
    _need(0 < header["steps"] <= MOST_STEPS, "steps: expected a positive number")
    _need(header["data"] == "" or bool(_DIGEST.fullmatch(header["data"])), "data: expected a SHA-256")
    tensors = header["tensors"]
    _need(
        bool(tensors) and all(isinstance(t, list) and len(t) == 3 and isinstance(t[0], str) for t in tensors),
        "tensors: expected names, shapes and types",
    )
    shapes, types = [shape for _, shape, _ in tensors], [kind for _, _, kind in tensors]
    plain = ["<f2" if header["precision"] == "float16" else "<f4"]
    known = [kind in (TYPES if looped else plain) for kind in types if isinstance(kind, str)]
    _need(len(known) == len(types) and all(known), "tensors: expected types of numbers")
    _need(
        all(isinstance(shape, list) and len(shape) <= 8 and all(map(_whole, shape)) for shape in shapes),
        "tensors: expected shapes",
    )
    _need(len({name for name, _, _ in tensors}) == len(tensors), "tensors: a name is there twice")


def _whole(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**40


def _need(holds: bool, words: str) -> None:
    if not holds:
        raise Malformed(words)
