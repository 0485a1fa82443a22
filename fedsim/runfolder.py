"""The run folder: the program's machine interface. Tensors as safetensors, tables as CSV and JSON.

config.yaml                     the resolved experiment
observations/round_1.sent.safetensors, round_1.client_0.safetensors
truth/, guesses/                the same names
history.csv, faults.csv         written while rounds are played
verdicts.csv, proofs/           of an audit; cheats.csv: who cheated, for the evaluator
scores.csv, summary.json        written when all is scored
model.safetensors               the final global model
log.txt, figures/, report.html
"""

import fcntl
import functools
import json
import math
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from statistics import fmean
from typing import Any, TypeGuard

import torch
from torch import Tensor

from fedsim.errors import FedsimError, shortened
from fedsim.files import append_row, csv_text, read_rows, read_tensors, write_tensors, write_text
from fedsim.types import Fault, Observation, Reconstruction, RoundResult, Truth, Verdict, Weights

MODEL_FILE = "model.safetensors"
SOURCE_FILE = "replayed.txt"  # in a replay: the folder of the run that it attacks
PARTITION_FILE = "partition.safetensors"
_SENT, _RECEIVED = "round_{round}.sent", "round_{round}.client_{client}"
_OWN_SENT = "round_{round}.sent_to_{client}"  # where a strategy sends each client something else


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

    def keep_observation(self, observation: Observation, *, own_sent: bool = False) -> None:
        """Save an observation; what was broadcast is saved once a round, unless this client got its own."""
        folder, place = self.path / "observations", {"round": observation.round, "client": observation.client}
        sent = folder / ((_OWN_SENT if own_sent else _SENT).format(**place) + ".safetensors")
        if not sent.exists():
            write_tensors(sent, observation.sent)
        told = {field.name for field in fields(observation)} - {"sent", "received", "defense"}
        notes = {name: getattr(observation, name) for name in sorted(told)}
        write_tensors(folder / (_RECEIVED.format(**place) + ".safetensors"), observation.received, notes)

    def observation(self, round: int, client: int) -> Observation:
        """Read one saved observation."""
        path = self._place("observations", round, client)
        received, notes = read_tensors(path)
        own = path.with_name(_OWN_SENT.format(round=round, client=client) + ".safetensors")
        shared = path.with_name(_SENT.format(round=round) + ".safetensors")
        source = own if own.exists() else shared
        if not source.exists():
            raise FedsimError(f"{path}: what was sent in that round is missing: {shared}")
        sent = _read_sent(source, source.stat().st_mtime_ns)
        try:
            return Observation(sent=sent, received=received, **notes)
        except TypeError as error:
            raise FedsimError(f"{path}: not an observation ({error})") from error

    def observations(self, round: int | None = None) -> Iterator[Observation]:
        """Read the saved observations one by one, by round and client, or those of one round."""
        for place in self.observed(round):
            yield self.observation(*place)

    def share_sizes(self) -> list[int]:
        """Return how many images each client owns; nothing in a replay, which trains nobody."""
        path = self.path / PARTITION_FILE
        return [len(share) for share in read_tensors(path)[0].values()] if path.exists() else []

    def observed(self, round: int | None = None) -> list[tuple[int, int]]:
        """Return (round, client) of every saved observation, in order, or of those of one round."""
        names = f"round_{'*' if round is None else round}.client_*.safetensors"
        return [_numbers(path) for path in _by_number((self.path / "observations").glob(names))]

    def count_observations(self) -> int:
        """Return how many observations are saved."""
        return sum(1 for _ in (self.path / "observations").glob("round_*.client_*.safetensors"))

    def keep_truth(self, truth: Truth) -> None:
        """Save a private batch for the evaluator."""
        pixels = truth.images.mul(255).add_(0.5).to(torch.uint8)
        exact = torch.equal(pixels / 255, truth.images)  # a quarter of the bytes
        tensors = {"pixels" if exact else "images": pixels if exact else truth.images, "labels": truth.labels}
        write_tensors(self._place("truth", truth.round, truth.client), tensors)

    def truth(self, round: int, client: int) -> Truth | None:
        """Read the private batch behind an observation, if it is known."""
        path = self._place("truth", round, client)
        if not path.exists():
            return None
        stored, _ = read_tensors(path)
        images = stored["pixels"] / 255 if "pixels" in stored else stored["images"]
        return Truth(round=round, client=client, images=images, labels=stored["labels"])

    def has_truth(self) -> bool:
        """Say whether any private batch is known."""
        return any((self.path / "truth").glob("round_*.client_*.safetensors"))

    def keep_guess(self, round: int, client: int, guess: Reconstruction, partial: bool = False) -> None:
        """Save what an attack recovered; partial: it was interrupted."""
        values = {f.name: getattr(guess, f.name) for f in fields(guess)}
        tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
        notes = {name: values[name] for name in ("trace", "seconds", "confidence", "embedding_layer")}
        notes["partial"] = partial
        write_tensors(self._place("guesses", round, client), tensors, notes)

    def guess(self, round: int, client: int) -> Reconstruction | None:
        """Read what an attack recovered, if it got that far."""
        path = self._place("guesses", round, client)
        if not path.exists():
            return None
        tensors, notes = read_tensors(path)
        values: dict[str, Any] = tensors | notes | {"trace": tuple(notes.get("trace", ()))}
        values.pop("partial", None)
        return Reconstruction(**values)

    def whole_guess(self, round: int, client: int) -> Reconstruction | None:
        """Read what an attack recovered that was not interrupted."""
        path = self._place("guesses", round, client)
        whole = path.exists() and not read_tensors(path)[1].get("partial", False)
        return self.guess(round, client) if whole else None

    def guessed(self) -> list[tuple[int, int]]:
        """Return (round, client) of every saved guess, in order."""
        paths = _by_number((self.path / "guesses").glob("round_*.client_*.safetensors"))
        return [_numbers(path) for path in paths]

    def keep_weights(self, weights: Weights, round: int) -> None:
        """Save the global model after a round: the last thing that is written of it."""
        write_tensors(self.path / MODEL_FILE, weights, {"round": round})

    def last_round(self) -> tuple[int, Weights]:
        """Return the last round that is complete, and the global model after it; 0 and nothing before any."""
        if not (self.path / MODEL_FILE).exists():
            return 0, {}
        weights, notes = read_tensors(self.path / MODEL_FILE)
        return int(notes.get("round", 0)), weights

    def forget_after(self, round: int) -> None:
        """Remove what is kept of rounds that did not end."""
        for name, row in (("history.csv", RoundResult), ("faults.csv", Fault), ("verdicts.csv", Verdict)):
            path = self.path / name
            if path.exists():
                kept = [line for line in read_rows(path) if int(line["round"]) <= round]
                names = [field.name for field in fields(row)]
                write_text(path, csv_text([names, *([line[name] for name in names] for line in kept)]))
        for path in (*self.path.glob("*/*round_*"), *self.path.glob("clients/*/round_*")):
            found = re.search(r"round_(\d+)", path.name)
            if found and int(found[1]) > round:
                path.unlink()
        for path in self.path.rglob("*.tmp"):  # of writes that did not end
            path.unlink()

    def keep_fault(self, fault: Fault) -> None:
        """Add a fault to faults.csv."""
        append_row(self.path / "faults.csv", replace(fault, reason=shortened(fault.reason)))

    def faults(self) -> list[Fault]:
        """Read faults.csv."""
        return [
            Fault(round=int(row["round"]), client=int(row["client"]), reason=row["reason"])
            for row in read_rows(self.path / "faults.csv")
        ]

    def keep_verdict(self, verdict: Verdict) -> None:
        """Add an audit's verdict to verdicts.csv."""
        append_row(self.path / "verdicts.csv", verdict)

    def verdicts(self) -> list[Verdict]:
        """Read verdicts.csv."""
        return [
            Verdict(
                round=int(row["round"]),
                client=int(row["client"]),
                accepted=row["accepted"] == "True",
                check=row["check"],
                reason=row["reason"],
                step=int(row["step"]) if row["step"] else None,
                distance=float(row["distance"]) if row["distance"] else None,
                limit=float(row["limit"]) if row["limit"] else None,
                recomputed=int(row["recomputed"]),
                steps=int(row["steps"]),
                seconds=float(row["seconds"]),
                bytes=int(row["bytes"]),
            )
            for row in read_rows(self.path / "verdicts.csv")
        ]

    def keep_cheats(self, cheats: Sequence[str]) -> None:
        """Write who cheats, and how: the evaluator's side channel."""
        lines = [["client", "cheat"], *([str(client), cheat] for client, cheat in enumerate(cheats))]
        write_text(self.path / "cheats.csv", csv_text(lines))

    def cheats(self) -> dict[int, str]:
        """Read who cheats, and how; empty when nobody does."""
        return {
            int(row["client"]): row["cheat"] for row in read_rows(self.path / "cheats.csv") if row["cheat"]
        }

    def keep_round(self, result: RoundResult) -> None:
        """Add a round's test result to history.csv."""
        append_row(self.path / "history.csv", result)

    def history(self) -> list[RoundResult]:
        """Read history.csv."""
        return [
            RoundResult(
                round=int(row["round"]), **{name: float(row[name]) for name in row if name != "round"}
            )
            for row in read_rows(self.path / "history.csv")
        ]

    def write_scores(self, rows: Sequence[ScoreRow]) -> None:
        """Write scores.csv."""
        lines = [[f.name for f in fields(ScoreRow)]]
        lines += [["" if value is None else str(value) for value in asdict(row).values()] for row in rows]
        write_text(self.path / "scores.csv", csv_text(lines))

    def scores(self) -> list[ScoreRow]:
        """Read scores.csv."""
        return [
            ScoreRow(
                round=int(row["round"]),
                client=int(row["client"]),
                attack=row["attack"],
                metric=row["metric"],
                value=float(row["value"]) if row["value"] else None,
                blind=float(row["blind"]) if row["blind"] else None,
                error=row["error"],
            )
            for row in read_rows(self.path / "scores.csv")
        ]

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write summary.json."""
        write_text(self.path / "summary.json", json.dumps(summary, indent=2, allow_nan=False) + "\n")

    def summary(self) -> dict[str, Any]:
        """Read summary.json; empty when the run did not get that far."""
        path = self.path / "summary.json"
        if not path.exists():
            return {}
        try:
            content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise FedsimError(f"{path}: not readable as JSON ({error})") from error
        return content

    def adopt(self, source: "RunFolder") -> None:
        """Copy what a replay takes over from the run that it attacks: truth, history, clients' faults."""
        if (source.path / "truth").is_dir():
            shutil.copytree(source.path / "truth", self.path / "truth", dirs_exist_ok=True)
        for name in ("history.csv", "faults.csv", "verdicts.csv", "cheats.csv"):
            if (source.path / name).is_file():
                shutil.copy(source.path / name, self.path / name)

    def keep_source(self, source: "RunFolder") -> None:
        """Note which run this replay attacks."""
        write_text(self.path / SOURCE_FILE, str(source.path.resolve()))

    def source(self) -> Path | None:
        """Return the run that this replay attacks; None: it is no replay."""
        path = self.path / SOURCE_FILE
        return Path(path.read_text(encoding="utf-8")) if path.exists() else None

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Keep other processes from writing here, too; the claim ends with this process at the latest."""
        with (self.path / "config.yaml").open(encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise FedsimError(
                    f"{self.path}: another process is writing this run. Remedy: wait for its end, or stop it."
                ) from error
            yield

    def config_text(self) -> str:
        """Read config.yaml."""
        path = self.path / "config.yaml"
        if not path.is_file():
            raise FedsimError(
                f"{self.path} is not a run folder: no config.yaml in it. Remedy: name a folder under runs/."
            )
        return path.read_text(encoding="utf-8")

    def _place(self, kind: str, round: int, client: int) -> Path:
        return self.path / kind / (_RECEIVED.format(round=round, client=client) + ".safetensors")


@functools.lru_cache(maxsize=1)
def _read_sent(path: Path, changed: int) -> Weights:
    """Read what was sent, once for all clients of a round."""
    return read_tensors(path)[0]


def _by_number(paths: Iterable[Path]) -> list[Path]:
    return sorted(paths, key=_numbers)


def _numbers(path: Path) -> tuple[int, int]:
    found = re.match(r"round_(\d+)\.client_(-?\d+)\.", path.name)
    if not found:
        raise FedsimError(f"unexpected file name: {path}")
    return int(found[1]), int(found[2])
