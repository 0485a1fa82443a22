"""Observations, private batches and guesses as files: one of each for a client in a round."""

import functools
import os
import re
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from fedsim.core.errors import FedsimError
from fedsim.core.types import Observation, Reconstruction, Truth, Weights
from fedsim.storage.files import reading
from fedsim.storage.folder import FOREIGN, MissingFile, Storage, unlisted
from fedsim.storage.manifest import DAMAGED

_SENT, _RECEIVED = "round_{round}.sent", "round_{round}.client_{client}"
_OWN_SENT = "round_{round}.sent_to_{client}"  # where a strategy sends each client something else
_NUMBERED = re.compile(r"round_(\d+)\.client_(-?\d+)\.safetensors")


def write_observation(storage: Storage, observation: Observation, *, own_sent: bool = False) -> None:
    """Save an observation; what was broadcast is saved once a round, unless this client got its own."""
    place = {"round": observation.round, "client": observation.client}
    sent = _in("observations", (_OWN_SENT if own_sent else _SENT).format(**place))
    if not storage.has(sent):
        storage.write_tensors(sent, observation.sent)
    disclosed = {field.name for field in fields(observation)} - {"sent", "received", "defense"}
    notes = {name: getattr(observation, name) for name in sorted(disclosed)}
    storage.write_tensors(file_of("observations", **place), observation.received, notes)


def read_observation(storage: Storage, round: int, client: int) -> Observation:
    """Read one saved observation."""
    name = file_of("observations", round, client)
    received, notes = _tensors(storage, name)
    own = _in("observations", _OWN_SENT.format(round=round, client=client))
    shared = _in("observations", _SENT.format(round=round))
    sent = _read_sent(storage, own if storage.has(own) else shared)
    with reading(storage.root / name):
        if (notes.get("round"), notes.get("client")) != (round, client):
            raise ValueError(f"it says that it is of round {notes.get('round')}, {notes.get('client')}")
        return Observation(sent=sent, received=received, **notes)


def write_truth(storage: Storage, truth: Truth) -> None:
    """Save a private batch for the evaluator."""
    floats = truth.images.is_floating_point()  # tokens are kept as they are
    pixels = truth.images.mul(255).add_(0.5).to(torch.uint8) if floats else truth.images
    exact = floats and torch.equal(pixels / 255, truth.images)  # a quarter of the bytes
    tensors = {"pixels" if exact else "images": pixels if exact else truth.images, "labels": truth.labels}
    storage.write_tensors(file_of("truth", truth.round, truth.client), tensors)


def read_truth(storage: Storage, round: int, client: int) -> Truth | None:
    """Read the private batch behind an observation, if it is known."""
    name = file_of("truth", round, client)
    if (found := storage.read_tensors(name)) is None:
        return None
    stored, _ = found
    with reading(storage.root / name):
        images = stored["pixels"] / 255 if "pixels" in stored else stored["images"]
        return Truth(round=round, client=client, images=images, labels=stored["labels"])


def write_guess(storage: Storage, round: int, client: int, guess: Reconstruction, *, partial: bool) -> None:
    """Save what an attack recovered; partial: it was interrupted."""
    values = {f.name: getattr(guess, f.name) for f in fields(guess)}
    tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
    notes = {name: values[name] for name in ("trace", "seconds", "residual", "embedding_layer")}
    notes["partial"] = partial
    storage.write_tensors(file_of("guesses", round, client), tensors, notes)


def read_guess(storage: Storage, round: int, client: int, *, whole: bool) -> Reconstruction | None:
    """Read what an attack recovered, if it got that far; whole: if it was not interrupted."""
    name = file_of("guesses", round, client)
    try:
        found = storage.read_tensors(name)
    except MissingFile:
        if not whole:
            raise
        return None  # it is made again
    if found is None:
        return None
    tensors, notes = found
    with reading(storage.root / name):
        if notes.pop("partial", False) and whole:
            return None
        values: dict[str, Any] = tensors | notes | {"trace": tuple(notes.get("trace", ()))}
        return Reconstruction(**values)


def numbered(storage: Storage, kind: str) -> list[tuple[int, int]]:
    """Return (round, client) of every file of a kind, in order; one that nobody wrote is refused."""
    folder = storage.root / kind
    here = [n for n in (os.listdir(folder) if folder.is_dir() else ()) if _NUMBERED.fullmatch(n)]
    if foreign := unlisted(storage, kind, here):
        raise FedsimError(f"{folder / min(foreign)} is not in its folder's manifest. {FOREIGN}")
    found = (_NUMBERED.fullmatch(name.removeprefix(f"{kind}/")) for name in storage.names(f"{kind}/"))
    return sorted((int(match[1]), int(match[2])) for match in found if match)


def file_of(kind: str, round: int, client: int) -> str:
    """Name the file of a client in a round: of observations, truth or guesses."""
    return _in(kind, _RECEIVED.format(round=round, client=client))


def _tensors(storage: Storage, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    if (found := storage.read_tensors(name)) is None:
        raise MissingFile(f"no such file: {storage.root / name}. {DAMAGED}")
    return found


def _read_sent(storage: Storage, name: str) -> Weights:
    """Read what was sent, once for all clients of a round."""
    return _read_sent_once(storage, name, storage.stamp(name))


@functools.lru_cache(maxsize=1)
def _read_sent_once(storage: Storage, name: str, stamp: str | None) -> Weights:
    return _tensors(storage, name)[0]


def _in(kind: str, name: str) -> str:
    return f"{kind}/{name}.safetensors"
