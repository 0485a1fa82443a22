"""The run folder: the program's machine interface. Tensors as safetensors, tables as CSV and JSON.

config.yaml                     the resolved experiment
observations/round_1.sent.safetensors, round_1.client_0.safetensors
truth/, guesses/                the same names
history.csv, faults.csv         written while rounds are played
verdicts.csv, proofs/           of an audit; cheats.csv: who cheated, for the evaluator
scores.csv, summary.json        written when all is scored
model.safetensors               the final global model
log.txt, figures/, report.html
manifest.txt, lock              checksums of all files (fedsim/storage/folder.py), and who is writing
"""

import functools
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import fmean
from typing import Any, TypeGuard

import torch
from torch import Tensor

from fedsim.core.errors import FedsimError, printable, shortened
from fedsim.core.types import Fault, Observation, Reconstruction, RoundResult, Truth, Verdict, Weights
from fedsim.storage.files import reading
from fedsim.storage.folder import FOREIGN, MissingFile, Storage, unlisted
from fedsim.storage.manifest import DAMAGED
from fedsim.storage.tables import append_row, read_rows, write_rows

RUNNING, COMPLETE, INTERRUPTED = "running", "complete", "interrupted"  # how a run stands, or "failed: ..."
GAVE_UP = "gave up"  # the attack refused every observation: how a run's status begins then
MODEL_FILE = "model.safetensors"
SOURCE_FILE = "replayed.txt"  # in a replay: the folder of the run that it attacks
PARTITION_FILE = "partition.safetensors"
_SENT, _RECEIVED = "round_{round}.sent", "round_{round}.client_{client}"
_OWN_SENT = "round_{round}.sent_to_{client}"  # where a strategy sends each client something else
_NUMBERED = re.compile(r"round_(\d+)\.client_(-?\d+)\.safetensors")
# Grow while rounds are played.
TABLES: Mapping[str, type[Any]] = {"history.csv": RoundResult, "faults.csv": Fault, "verdicts.csv": Verdict}


@dataclass(frozen=True, kw_only=True)
class CheatRow:
    """One line of cheats.csv."""

    client: int
    cheat: str


@dataclass(frozen=True, kw_only=True)
class ScoreRow:
    """One line of scores.csv; `error` instead of a value where a client or an attack failed."""

    round: int
    client: int
    attack: str
    metric: str
    value: float | None
    blind: float | None = None
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class MetricLine:
    """What all scores of one metric come to."""

    name: str
    mean: float
    lowest: float
    highest: float
    blind: float | None
    number: int


def metric_lines(rows: Sequence[ScoreRow]) -> list[MetricLine]:
    """Summarise the scores of each metric; lines without a finite value report failures and do not count."""
    lines = []
    for name in dict.fromkeys(row.metric for row in rows if _is_figure(row.value)):
        values = [row.value for row in rows if row.metric == name and _is_figure(row.value)]
        blind = [row.blind for row in rows if row.metric == name and _is_figure(row.blind)]
        lines.append(
            MetricLine(
                name=name,
                mean=fmean(values),
                lowest=min(values),
                highest=max(values),
                blind=fmean(blind) if blind else None,
                number=len(values),
            )
        )
    return lines


def _is_figure(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)


def as_figure(value: float | None) -> str:
    """Return a number as tables show it: three decimals, or none where it is large."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.3f}"


@dataclass(frozen=True)
class RunFolder:
    """Reads and writes one run's files."""

    path: Path

    @property
    def storage(self) -> Storage:
        """The folder's files, each as it was written."""
        return Storage(self.path)

    def keep_observation(self, observation: Observation, *, own_sent: bool = False) -> None:
        """Save an observation; what was broadcast is saved once a round, unless this client got its own."""
        place = {"round": observation.round, "client": observation.client}
        sent = _in("observations", (_OWN_SENT if own_sent else _SENT).format(**place))
        if not self.storage.has(sent):
            self.storage.write_tensors(sent, observation.sent)
        told = {field.name for field in fields(observation)} - {"sent", "received", "defense"}
        notes = {name: getattr(observation, name) for name in sorted(told)}
        received = _in("observations", _RECEIVED.format(**place))
        self.storage.write_tensors(received, observation.received, notes)

    def observation(self, round: int, client: int) -> Observation:
        """Read one saved observation."""
        name = _in("observations", _RECEIVED.format(round=round, client=client))
        received, notes = _tensors(self.storage, name)
        own = _in("observations", _OWN_SENT.format(round=round, client=client))
        shared = _in("observations", _SENT.format(round=round))
        sent = _read_sent(self.storage, own if self.storage.has(own) else shared)
        with reading(self.path / name):
            if (notes.get("round"), notes.get("client")) != (round, client):
                raise ValueError(f"it says that it is of round {notes.get('round')}, {notes.get('client')}")
            return Observation(sent=sent, received=received, **notes)

    def observations(self, round: int | None = None) -> Iterator[Observation]:
        """Read the saved observations one by one, by round and client, or those of one round."""
        for place in self.observed(round):
            yield self.observation(*place)

    def share_sizes(self) -> list[int]:
        """Return how many images each client owns; nothing in a replay, which trains nobody."""
        stored = self.storage.read_tensors(PARTITION_FILE)
        return [] if stored is None else [len(share) for share in stored[0].values()]

    def observed(self, round: int | None = None) -> list[tuple[int, int]]:
        """Return (round, client) of every saved observation, in order, or of those of one round."""
        return [place for place in self._places("observations") if round in (None, place[0])]

    def count_observations(self) -> int:
        """Return how many observations are saved."""
        return len(self._places("observations"))

    def keep_truth(self, truth: Truth) -> None:
        """Save a private batch for the evaluator."""
        pixels = truth.images.mul(255).add_(0.5).to(torch.uint8)
        exact = torch.equal(pixels / 255, truth.images)  # a quarter of the bytes
        tensors = {"pixels" if exact else "images": pixels if exact else truth.images, "labels": truth.labels}
        name = _in("truth", _RECEIVED.format(round=truth.round, client=truth.client))
        self.storage.write_tensors(name, tensors)

    def truth(self, round: int, client: int) -> Truth | None:
        """Read the private batch behind an observation, if it is known."""
        name = _in("truth", _RECEIVED.format(round=round, client=client))
        if (found := self.storage.read_tensors(name)) is None:
            return None
        stored, _ = found
        with reading(self.path / name):
            images = stored["pixels"] / 255 if "pixels" in stored else stored["images"]
            return Truth(round=round, client=client, images=images, labels=stored["labels"])

    def has_truth(self) -> bool:
        """Say whether any private batch is known."""
        return bool(self._places("truth"))

    def keep_guess(self, round: int, client: int, guess: Reconstruction, partial: bool = False) -> None:
        """Save what an attack recovered; partial: it was interrupted."""
        values = {f.name: getattr(guess, f.name) for f in fields(guess)}
        tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
        notes = {name: values[name] for name in ("trace", "seconds", "confidence", "embedding_layer")}
        notes["partial"] = partial
        name = _in("guesses", _RECEIVED.format(round=round, client=client))
        self.storage.write_tensors(name, tensors, notes)

    def guess(self, round: int, client: int, *, whole: bool = False) -> Reconstruction | None:
        """Read what an attack recovered, if it got that far; whole: if it was not interrupted."""
        name = _in("guesses", _RECEIVED.format(round=round, client=client))
        try:
            found = self.storage.read_tensors(name)
        except MissingFile:
            if not whole:
                raise
            return None  # it is made again
        if found is None:
            return None
        tensors, notes = found
        with reading(self.path / name):
            if notes.pop("partial", False) and whole:
                return None
            values: dict[str, Any] = tensors | notes | {"trace": tuple(notes.get("trace", ()))}
            return Reconstruction(**values)

    def guessed(self) -> list[tuple[int, int]]:
        """Return (round, client) of every saved guess, in order."""
        return self._places("guesses")

    def keep_weights(self, weights: Weights, round: int) -> None:
        """Save the global model after a round: the last thing that is written of it."""
        self.storage.write_tensors(MODEL_FILE, weights, {"round": round})

    def last_round(self) -> tuple[int, Weights]:
        """Return the last round that is complete, and the global model after it; 0 and nothing before any."""
        if (found := self.storage.read_tensors(MODEL_FILE)) is None:
            return 0, {}
        with reading(self.path / MODEL_FILE):
            return int(found[1].get("round", 0)), found[0]

    def forget_after(self, round: int) -> None:
        """Remove what is kept of rounds that did not end."""
        tables: dict[str, type[Any]] = {
            "history.csv": RoundResult,
            "faults.csv": Fault,
            "verdicts.csv": Verdict,
        }
        for name, kind in tables.items():
            if self.storage.has(name):
                kept = [row for row in read_rows(self.storage, name, kind) if row.round <= round]
                write_rows(self.storage, name, kind, kept)
        numbers = {name: re.search(r"round_(\d+)", name) for name in self.storage.names()}
        self.storage.delete(name for name, found in numbers.items() if found and int(found[1]) > round)

    def forget_private(self) -> None:
        """Remove private batches, what was seen of them, and what attacks made of that."""
        kinds = ("observations/", "truth/", "guesses/", "clients/", "proofs/")
        self.storage.delete([name for kind in kinds for name in self.storage.names(kind)])

    def seal_tables(self) -> None:
        """Write tables that grew line by line as whole files: from now on, a lost end is a damage."""
        for name in TABLES:
            if (content := self.storage.read(name)) is not None:
                self.storage.write(name, content)

    def keep_fault(self, fault: Fault) -> None:
        """Add a fault to faults.csv."""
        append_row(self.storage, "faults.csv", replace(fault, reason=shortened(printable(fault.reason))))

    def faults(self) -> list[Fault]:
        """Read faults.csv."""
        return read_rows(self.storage, "faults.csv", Fault)

    def keep_verdict(self, verdict: Verdict) -> None:
        """Add an audit's verdict to verdicts.csv."""
        append_row(self.storage, "verdicts.csv", verdict)

    def verdicts(self) -> list[Verdict]:
        """Read verdicts.csv."""
        return read_rows(self.storage, "verdicts.csv", Verdict)

    def keep_cheats(self, cheats: Sequence[str]) -> None:
        """Write who cheats, and how: the evaluator's side channel."""
        rows = [CheatRow(client=client, cheat=cheat) for client, cheat in enumerate(cheats)]
        write_rows(self.storage, "cheats.csv", CheatRow, rows)

    def cheats(self) -> dict[int, str]:
        """Read who cheats, and how; empty when nobody does."""
        rows = read_rows(self.storage, "cheats.csv", CheatRow)
        return {row.client: row.cheat for row in rows if row.cheat}

    def keep_round(self, result: RoundResult) -> None:
        """Add a round's test result to history.csv."""
        append_row(self.storage, "history.csv", result)

    def history(self) -> list[RoundResult]:
        """Read history.csv."""
        return read_rows(self.storage, "history.csv", RoundResult)

    def write_scores(self, rows: Sequence[ScoreRow]) -> None:
        """Write scores.csv."""
        write_rows(self.storage, "scores.csv", ScoreRow, rows)

    def scores(self) -> list[ScoreRow]:
        """Read scores.csv."""
        return read_rows(self.storage, "scores.csv", ScoreRow)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write summary.json."""
        self.storage.write_text("summary.json", json.dumps(summary, indent=2, allow_nan=False) + "\n")

    def summary(self) -> dict[str, Any]:
        """Read summary.json; empty when the run did not get that far."""
        if (text := self.storage.read_text("summary.json")) is None:
            return {}
        with reading(self.path / "summary.json"):
            return dict(json.loads(text))

    @property
    def status(self) -> str:
        """How the run stands, in a word or a sentence; empty when it never began."""
        return str(self.summary().get("status", ""))

    def adopt(self, source: "RunFolder") -> None:
        """Copy what a replay takes over from the run that it attacks: truth, history, clients' faults."""
        names = [_in("truth", _RECEIVED.format(round=r, client=c)) for r, c in source._places("truth")]
        for name in (*names, *TABLES, "cheats.csv"):
            if not self.storage.has(name) and (content := source.storage.read(name)) is not None:
                self.storage.write(name, content)

    def keep_source(self, source: "RunFolder") -> None:
        """Note which run this replay attacks."""
        self.storage.write_text(SOURCE_FILE, str(source.path.resolve()))

    def source(self) -> Path | None:
        """Return the run that this replay attacks; None: it is no replay."""
        text = self.storage.read_text(SOURCE_FILE)
        return None if text is None else Path(text)

    def claimed(self) -> AbstractContextManager[None]:
        """Keep other processes from writing here, too; the claim ends with this process at the latest."""
        return self.storage.claimed()

    def config_text(self) -> str:
        """Read config.yaml."""
        if (text := self.storage.read_text("config.yaml")) is None:
            raise FedsimError(
                f"{self.path} is not a run folder: no config.yaml in it. Remedy: name a folder under runs/."
            )
        return text

    def _places(self, kind: str) -> list[tuple[int, int]]:
        """Return (round, client) of every file of a kind, in order; one that nobody wrote is refused."""
        folder = self.path / kind
        here = [n for n in (os.listdir(folder) if folder.is_dir() else ()) if _NUMBERED.fullmatch(n)]
        if foreign := unlisted(self.storage, kind, here):
            raise FedsimError(f"{folder / min(foreign)} is not in its folder's manifest. {FOREIGN}")
        found = (
            _NUMBERED.fullmatch(name.removeprefix(f"{kind}/")) for name in self.storage.names(f"{kind}/")
        )
        return sorted((int(match[1]), int(match[2])) for match in found if match)


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
